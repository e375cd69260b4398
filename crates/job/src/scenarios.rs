//! Simulated clusters by name, and those that users write themselves.

use std::path::Path;

use paceline_sim::Scenario;

use crate::job::{read_description, toml_sentence};
use crate::recipes::unknown;

/// Every scenario that comes with Paceline: its name and its TOML.
pub const ALL: [(&str, &str); 7] = [
    ("uniform", include_str!("../../../scenarios/uniform.toml")),
    ("stragglers", include_str!("../../../scenarios/stragglers.toml")),
    ("slow-network", include_str!("../../../scenarios/slow-network.toml")),
    ("elastic", include_str!("../../../scenarios/elastic.toml")),
    ("spot", include_str!("../../../scenarios/spot.toml")),
    ("cut", include_str!("../../../scenarios/cut.toml")),
    ("wide-area", include_str!("../../../scenarios/wide-area.toml")),
];

/// The scenario of that name, or a sentence that offers the nearest one.
pub fn named(name: &str) -> Result<Scenario, String> {
    parse(name, toml_of(name)?)
}

/// The TOML of the scenario of that name, with its comments.
pub fn toml_of(name: &str) -> Result<&'static str, String> {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let otherwise = "`paceline scenarios` lists them all, and a path to a .toml file will do";
        unknown("scenario", name, ALL.iter().map(|(known, _)| *known), otherwise)
    })
}

/// The scenario of that name, or in that file.
pub fn load(name_or_path: &str) -> Result<Scenario, String> {
    let is_path = name_or_path.ends_with(".toml") || name_or_path.contains(['/', '\\']);
    if !is_path {
        return named(name_or_path);
    }
    let text = read_description("scenario", name_or_path)?;
    let mut scenario = parse(name_or_path, &text)?;
    if scenario.name.is_empty() {
        let stem = Path::new(name_or_path).file_stem().unwrap_or_default();
        scenario.name = stem.to_string_lossy().into_owned();
    }
    Ok(scenario)
}

pub(crate) fn parse(from: &str, text: &str) -> Result<Scenario, String> {
    let scenario: Scenario =
        toml::from_str(text).map_err(|error| format!("{from}, {}", toml_sentence(text, &error)))?;
    scenario.check().map_err(|sentence| format!("{from}: {sentence}"))?;
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_valid_and_bears_its_name() {
        for (name, _) in ALL {
            let scenario = named(name).expect("what comes with Paceline is valid");

            assert_eq!(scenario.name, name);
            assert!(!scenario.description.is_empty(), "{name} says nothing about itself");
        }
    }

    #[test]
    fn a_wrong_field_is_told_with_file_and_line() {
        let sentence = parse("mine.toml", "workers = 2\n[network]\nlatenzy = 1.0\n").unwrap_err();

        assert!(sentence.starts_with("mine.toml, line 3: unknown field `latenzy`"), "{sentence}");
    }
}
