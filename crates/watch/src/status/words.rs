//! How workers, parts and times are written in sentences.

use paceline_runtime::WorkerId;

/// So many workers are named; of more, only the number is said.
const NAMED_MAX: usize = 6;

/// "worker 3", "workers 1, 2 and 3", or "12 workers".
pub fn listed(workers: &[WorkerId]) -> String {
    let names: Vec<String> = workers.iter().map(WorkerId::to_string).collect();
    match names.as_slice() {
        [] => "no worker".to_owned(),
        [one] => format!("worker {one}"),
        many if many.len() > NAMED_MAX => format!("{} workers", many.len()),
        [first @ .., last] => format!("workers {} and {last}", first.join(", ")),
    }
}

/// A part from 0 to 1, as in "41 %".
pub fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// With a capital at the beginning.
pub fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_named_as_in_a_sentence() {
        let ids = |count: u32| (0..count).map(WorkerId).collect::<Vec<_>>();

        assert_eq!(listed(&ids(1)), "worker 0");
        assert_eq!(listed(&ids(2)), "workers 0 and 1");
        assert_eq!(listed(&ids(3)), "workers 0, 1 and 2");
        assert_eq!(listed(&ids(7)), "7 workers");
    }
}
