//! Simulated clusters by name or from a file.

use std::path::Path;

use paceline_sim::Scenario;

use crate::description::{DescriptionError, TomlError, read_description};
use crate::error::ScenarioError;
use crate::suggest::unknown;

/// The built-in scenarios: names and TOML texts.
pub const ALL: [(&str, &str); 8] = [
    ("uniform", include_str!("../../../scenarios/uniform.toml")),
    ("stragglers", include_str!("../../../scenarios/stragglers.toml")),
    ("slow-network", include_str!("../../../scenarios/slow-network.toml")),
    ("elastic", include_str!("../../../scenarios/elastic.toml")),
    ("spot", include_str!("../../../scenarios/spot.toml")),
    ("cut", include_str!("../../../scenarios/cut.toml")),
    ("hostile", include_str!("../../../scenarios/hostile.toml")),
    ("wide-area", include_str!("../../../scenarios/wide-area.toml")),
];

/// The built-in scenario of that name; an error suggests the nearest one.
pub fn named(name: &str) -> Result<Scenario, ScenarioError> {
    parse(name, toml_of(name)?)
}

/// The TOML text of the built-in scenario of that name, with its comments.
pub fn toml_of(name: &str) -> Result<&'static str, ScenarioError> {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let advice = "`paceline scenarios` lists them all; or give the path of a .toml file";
        unknown("scenario", name, ALL.iter().map(|(known, _)| *known), advice).into()
    })
}

/// The built-in scenario of that name, or the one in that file.
pub fn load(name_or_path: &str) -> Result<Scenario, ScenarioError> {
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

pub(crate) fn parse(from: &str, text: &str) -> Result<Scenario, ScenarioError> {
    let from = from.to_owned();
    let scenario: Scenario = toml::from_str(text).map_err(|error| {
        let source = TomlError::new(text, &error);
        DescriptionError::Malformed { from: from.clone(), source }
    })?;
    scenario.check().map_err(|source| ScenarioError::InvalidFile { from, source })?;
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_scenario_is_valid_and_has_its_name() {
        for (name, _) in ALL {
            let scenario = named(name).expect("built-in scenarios are valid");

            assert_eq!(scenario.name, name);
            assert!(!scenario.description.is_empty(), "{name} has no description");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_with_file_and_line() {
        let error = parse("mine.toml", "workers = 2\n[network]\nlatenzy = 1.0\n").unwrap_err();

        let message = error.to_string();
        assert!(message.starts_with("mine.toml, line 3: unknown field `latenzy`"), "{message}");
    }
}
