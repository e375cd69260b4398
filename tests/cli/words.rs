//! Lists and help, word for word.

use std::fs;
use std::path::PathBuf;

use super::paceline;

#[test]
fn lists_and_help_are_as_they_were() {
    for (name, arguments) in [
        ("help", "--help"),
        ("help-simulate", "simulate --help"),
        ("help-compare", "compare --help"),
        ("help-train", "train --help"),
        ("help-calibrate", "calibrate --help"),
        ("help-evaluate", "evaluate --help"),
        ("help-predict", "predict --help"),
        ("help-report", "report --help"),
        ("help-reproduce", "reproduce --help"),
        ("help-strategies", "strategies --help"),
        ("help-scenarios", "scenarios --help"),
        ("help-data", "data --help"),
        ("help-data-get", "data get --help"),
        ("data-list", "data list --dir nowhere"),
        ("strategies", "strategies"),
        ("scenarios", "scenarios"),
    ] {
        let call = paceline(arguments);

        assert_eq!((call.code, call.stderr.as_str()), (0, ""), "paceline {arguments}");
        assert_snapshot(name, &call.stdout);
    }
}

fn assert_snapshot(name: &str, text: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/snapshots", name].iter().collect();
    let path = path.with_extension("txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, text).expect("tests/snapshots can be written");
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    let path = path.display();
    assert_eq!(text, before, "if this is meant, run again with UPDATE_SNAPSHOTS=1: {path}");
}
