//! Where the learning rates of a comparison come from: ratios of times mean little unless readers know it.

use std::collections::BTreeMap;

use paceline_job::Recipe;

use crate::error::UsageError;

/// The origin of one learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The recipe's own.
    Default,
    /// The job file or --learning-rate sets one for all strategies.
    ByHand,
    /// --tuned-rates has one for this strategy.
    Tuned,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::ByHand => "by hand",
            Origin::Tuned => "tuned",
        }
    }
}

/// A strategy and its rate, as the user gives it: `ssgd=0.1`.
pub type TunedRate = (String, f32);

pub fn tuned_rate(text: &str) -> Result<TunedRate, UsageError> {
    let (name, rate) = text.split_once('=').ok_or(UsageError::TunedRate)?;
    let rate = rate.trim().parse().map_err(|_| UsageError::TunedRate)?;
    Ok((name.trim().to_owned(), rate))
}

/// The learning rates of a comparison.
#[derive(Debug)]
pub struct Rates {
    for_all: Option<f32>,
    tuned: BTreeMap<String, f32>,
}

impl Rates {
    /// `for_all`: what the job sets for all strategies.
    pub fn new(
        for_all: Option<f32>,
        tuned: &[TunedRate],
        recipes: &[Recipe],
    ) -> Result<Rates, UsageError> {
        let is_known = |name: &str| recipes.iter().any(|recipe| recipe.name == name);
        if let Some((name, _)) = tuned.iter().find(|(name, _)| !is_known(name)) {
            return Err(UsageError::TunedStrategy { name: name.clone() });
        }
        Ok(Rates { for_all, tuned: tuned.iter().cloned().collect() })
    }

    /// The rate of a strategy; `None`: its recipe's own.
    pub fn of(&self, strategy: &str) -> Option<f32> {
        self.tuned.get(strategy).copied().or(self.for_all)
    }

    pub fn origin(&self, strategy: &str) -> Origin {
        match (self.tuned.contains_key(strategy), self.for_all) {
            (true, _) => Origin::Tuned,
            (false, Some(_)) => Origin::ByHand,
            (false, None) => Origin::Default,
        }
    }

    /// "defaults", or how many are which: "2 tuned, 14 default".
    pub fn summary<'a>(&self, strategies: impl Iterator<Item = &'a str>) -> String {
        let origins: Vec<Origin> = strategies.map(|strategy| self.origin(strategy)).collect();
        let kinds = [
            (Origin::Tuned, "tuned"),
            (Origin::ByHand, "set by hand"),
            (Origin::Default, "defaults"),
        ];
        let counts = kinds
            .map(|(kind, words)| (origins.iter().filter(|origin| **origin == kind).count(), words));
        let present: Vec<_> = counts.into_iter().filter(|(count, _)| *count > 0).collect();
        match present.as_slice() {
            [(_, words)] => (*words).to_owned(),
            several => {
                let one = |(count, words): &(usize, &str)| {
                    format!("{count} {}", words.trim_end_matches('s'))
                };
                several.iter().map(one).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_job::recipes;

    use super::*;

    fn rates(for_all: Option<f32>, tuned: &[TunedRate]) -> Rates {
        Rates::new(for_all, tuned, &recipes()).expect("all strategies are known")
    }

    #[test]
    fn a_rate_is_that_of_the_strategy_or_of_all_or_the_recipes_own_and_says_which() {
        let tuned = [("ssgd".to_owned(), 0.4)];
        for (rates, ssgd, abs, summary) in [
            (rates(None, &[]), (None, "default"), (None, "default"), "defaults"),
            (rates(Some(0.1), &[]), (Some(0.1), "by hand"), (Some(0.1), "by hand"), "set by hand"),
            (rates(None, &tuned), (Some(0.4), "tuned"), (None, "default"), "1 tuned, 1 default"),
            (
                rates(Some(0.1), &tuned),
                (Some(0.4), "tuned"),
                (Some(0.1), "by hand"),
                "1 tuned, 1 set by hand",
            ),
        ] {
            let shown = |name: &str| (rates.of(name), rates.origin(name).name());
            assert_eq!((shown("ssgd"), shown("abs")), (ssgd, abs));
            assert_eq!(rates.summary(["ssgd", "abs"].into_iter()), summary);
        }
    }

    #[test]
    fn a_tuned_rate_is_a_known_strategy_and_a_number() {
        assert_eq!(tuned_rate("abs=0.3").expect("it is one"), ("abs".to_owned(), 0.3));
        for text in ["abs", "abs=", "abs=high", "=0.3x"] {
            assert!(tuned_rate(text).is_err(), "{text}");
        }
        assert!(Rates::new(None, &[("asb".to_owned(), 0.3)], &recipes()).is_err());
    }
}
