//! Unknown names, with the nearest known name as a suggestion.

/// A name that is not in the table it was looked up in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} `{name}`; {advice}")]
pub struct UnknownName {
    /// What the name should have named, e.g. "strategy".
    pub kind: &'static str,
    pub name: String,
    /// The known name with the fewest typing errors, if one is close enough.
    pub nearest: Option<String>,
    /// "did you mean `abs`?", or where to find the known names.
    advice: String,
}

/// "there is no strategy `abx`; did you mean `abs`?"; if no known name is close, `otherwise` is the advice.
pub fn unknown<'a>(
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    otherwise: &str,
) -> UnknownName {
    let asked = name.to_lowercase();
    let typos = |known: &str| match known.starts_with(&asked) && asked.len() > 2 {
        true => 0,
        false => strsim::damerau_levenshtein(known, &asked),
    };
    let nearest = known.map(|known| (typos(known), known)).min_by_key(|(typos, _)| *typos);
    // More than one typing error in three letters: the user meant something else.
    let is_close =
        |typos: usize, nearest: &str| typos <= (nearest.len().max(asked.len()) / 3).max(1);
    let nearest = nearest.filter(|(typos, nearest)| is_close(*typos, nearest));
    let nearest = nearest.map(|(_, nearest)| nearest.to_owned());
    let advice = match &nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => otherwise.to_owned(),
    };
    UnknownName { kind, name: name.to_owned(), nearest, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_unless_all_are_far() {
        let known = ["ssgd", "abs", "gossip-pull"];
        let advice = |name| unknown("strategy", name, known.into_iter(), "see the list");

        assert_eq!(advice("abx").nearest.as_deref(), Some("abs"));
        assert_eq!(advice("GOSSIP").nearest.as_deref(), Some("gossip-pull"));
        assert_eq!(advice("abx").to_string(), "there is no strategy `abx`; did you mean `abs`?");
        assert_eq!(advice("zzzz").to_string(), "there is no strategy `zzzz`; see the list");
    }
}
