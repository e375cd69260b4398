//! Counts with their nouns.

/// "1 worker", "2 workers".
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
