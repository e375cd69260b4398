//! Tells the program which commit it was built from; results name it.

use std::path::Path;
use std::process::Command;

fn main() {
    // Whatever is built anew is looked at anew. A path that is not there would mean: every time.
    let watched = ["../../.git/logs/HEAD", "../../crates", "../../src"];
    for path in watched.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rustc-env=PACELINE_COMMIT={}", commit().unwrap_or_default());
}

/// With a `+` behind it if the code has been changed since; `None` outside of a repository.
fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ":/*.rs"])?;
    Some(if changes.is_empty() { commit } else { commit + "+" })
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}
