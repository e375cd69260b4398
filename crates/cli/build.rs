//! Sets PACELINE_COMMIT to the commit that the program is built from; experiment results contain it.

use std::path::Path;
use std::process::Command;

fn main() {
    // Cargo reruns this script when one of these changes; a missing path would make it run every time.
    let watched = ["../../.git/logs/HEAD", "../../crates", "../../src"];
    for path in watched.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rustc-env=PACELINE_COMMIT={}", commit().unwrap_or_default());
}

/// Returns the commit, with a `+` if there are uncommitted changes; `None` outside a repository.
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
