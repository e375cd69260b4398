//! The examples of the help texts run as they stand, only shorter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{paceline, work_dir};

/// What must be there before the examples of a command are run, as a shell script.
const BEFORE: [(&str, &str); 3] = [
    ("evaluate", "paceline train --epochs 1 --checkpoints saved --json > none && rm -r saved none"),
    (
        "predict",
        "paceline train --epochs 1 --checkpoints saved --json > none && \
         paceline train --model charlm --data text --samples 64 --epochs 6 --checkpoints alice --json > none",
    ),
    ("simulate", "paceline scenarios spot > my-cluster.toml"),
];

/// The commands of an example; comments behind two spaces and what only other programs do are left out.
fn calls(example: &str) -> Vec<String> {
    let example = example.split(" | ").next().unwrap_or(example);
    let parts = example.split(" && ").map(|part| part.trim().split("  ").next().unwrap_or(part));
    parts.map(shorter).collect()
}

fn shorter(call: &str) -> String {
    let call = call.replace("--epochs 30 --plot", "--epochs 1 --plot");
    let is_long = ["compare", "simulate", "train"].iter().any(|name| call.contains(name));
    match call.as_str() {
        _ if call.contains("reproduce") => call + " --dry-run",
        "paceline calibrate --check" => call + " --strategies ssgd --epochs 0.2",
        _ if is_long && !call.contains("--epochs") => call + " --epochs 1",
        _ => call,
    }
}

/// Examples that need a download.
fn needs_data(call: &str) -> bool {
    ["data get", "fashion-mnist"].iter().any(|name| call.contains(name))
}

fn folder(name: &str) -> PathBuf {
    let folder = work_dir().join("examples").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for picture in ["cat.png", "dog.png"] {
        let mut encoder = png::Encoder::new(fs::File::create(folder.join(picture)).unwrap(), 8, 8);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.write_header().unwrap().write_image_data(&[7; 64]).unwrap();
    }
    fs::write(folder.join("scan.pgm"), "P5 1 1 255\n0").unwrap();
    let mine = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/dbs.toml");
    fs::copy(mine, folder.join("mine.toml")).unwrap();
    folder
}

/// Runs a shell script in which `paceline` is this program.
fn shell(script: &str, folder: &Path) -> (Option<i32>, String) {
    let bin = Path::new(env!("CARGO_BIN_EXE_paceline")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("PATH", path).current_dir(folder);
    let output = command.output().expect("there is a shell");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[cfg(unix)]
#[test]
fn the_examples_of_all_help_texts_run() {
    let names = [
        "",
        "simulate",
        "compare",
        "train",
        "calibrate",
        "evaluate",
        "predict",
        "report",
        "reproduce",
        "strategies",
        "scenarios",
        "data",
    ];
    let mut examples = 0;
    for name in names {
        let help = paceline(&format!("{name} --help")).stdout;
        let folder = folder(if name.is_empty() { "all" } else { name });
        let before = BEFORE.iter().filter(|(of, _)| *of == name);
        for (_, script) in before {
            let prepared = shell(script, &folder);
            assert_eq!(prepared.0, Some(0), "{script}: {}", prepared.1);
        }
        let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
        for line in lines.filter(|line| line.starts_with("paceline ")) {
            for call in calls(line).into_iter().filter(|call| !needs_data(call)) {
                let (code, stderr) = shell(&call, &folder);
                assert_eq!(code, Some(0), "{name} --help: {call}: {stderr}");
                examples += 1;
            }
        }
    }
    assert!(examples > 30, "{examples} examples were found");
}
