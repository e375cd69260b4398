//! The tables and pictures of docs/papers.md are those that `paceline reproduce` makes from the stored results; this test
//! trains nothing.
//!
//! `UPDATE=1 cargo test --test shown` rewrites tables and pictures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Each experiment with the figures that the documents show: number and file name.
const SHOWN: [(&str, &[(u32, &str)]); 5] = [
    ("dynamic-sgd", &[(2, "papers-dynamic"), (3, "papers-dynamic-rate")]),
    ("abs-sgd", &[(1, "papers-abs")]),
    ("dbs", &[(2, "papers-dbs")]),
    ("how-to-scale", &[(1, "papers-scale-accuracy"), (3, "papers-scale")]),
    ("adpsgd", &[(1, "papers-adpsgd"), (2, "papers-adpsgd-variance")]),
];

#[test]
fn every_table_and_picture_of_the_papers_comes_from_the_stored_results() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_updating = std::env::var_os("UPDATE").is_some();
    let document = here.join("docs/papers.md");
    let mut text = fs::read_to_string(&document).expect("the document exists");
    let folder = copied(&here.join("experiments/results"));
    for (name, figures) in SHOWN {
        let table = reproduce(&folder, name);
        let start = format!("\n`paceline reproduce {name}` ([every run](../experiments/results/");
        let start = text.find(&start).unwrap_or_else(|| panic!("docs/papers.md shows {name}"));
        let start = start + text[start..].find("```text\n").expect("a table follows") + 8;
        let end = start + text[start..].find("\n```").expect("the table ends");
        if is_updating {
            text.replace_range(start..end, table.trim());
        } else {
            assert_eq!(
                &text[start..end],
                table.trim(),
                "if this is intended, run again with UPDATE=1"
            );
        }
        for (number, shown) in figures {
            let drawn = fs::read(folder.join(format!("{name}-standard-{number}.svg")));
            let drawn = drawn.expect("every figure is drawn");
            let picture = here.join("docs/images").join(shown).with_extension("svg");
            if is_updating {
                fs::write(&picture, &drawn).expect("pictures can be written");
            }
            let is_same = fs::read(&picture).is_ok_and(|before| before == drawn);
            assert!(is_same, "{shown}.svg: if this is intended, run again with UPDATE=1");
        }
    }
    if is_updating {
        fs::write(&document, text).expect("the document can be written");
    }
}

#[test]
fn the_readme_agrees_with_the_tables() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name| fs::read_to_string(here.join(name)).expect("the document exists");
    let (readme, papers) = (read("README.md"), read("docs/papers.md"));
    let rows = readme.lines().skip_while(|line| !line.starts_with("| claim | paper |")).skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 10, "{rows:?}");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, paper, ours, verdict] = cells[..] else { panic!("four columns: {row}") };
        let says_so = |line: &str| {
            line.trim_end().ends_with(verdict)
                && line.contains(&format!("  {paper}  "))
                && line.contains(&format!("  {ours}  "))
        };
        assert!(papers.lines().any(says_so), "docs/papers.md has no such row: {row}");
    }
}

/// A copy of the stored results, in a folder where the command may write.
fn copied(from: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shown");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a test folder can be created");
    for entry in fs::read_dir(from).expect("the results exist") {
        let path = entry.expect("they can be listed").path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let name = path.file_name().expect("a file has a name");
            fs::copy(&path, folder.join(name)).expect("they can be copied");
        }
    }
    folder
}

/// The table that the command prints. The data folder does not exist, so a missing result is an error, not a training.
fn reproduce(folder: &Path, name: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(["reproduce", name, "--folder"]).arg(folder).stdin(Stdio::null());
    let output = command.env("PACELINE_DATA", "nowhere").output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    assert!(output.status.success(), "{name}: {}", text(output.stderr));
    text(output.stdout)
}
