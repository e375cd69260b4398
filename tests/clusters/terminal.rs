//! What is on a terminal when a coordinator has ended: messages are not erased by the progress bar, and nothing is said twice.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::program::{Cluster, wait_until};

const COLUMNS: usize = 120;
const PROGRAM: &str = env!("CARGO_BIN_EXE_paceline");

/// The lines of a terminal after these bytes: as much of its language as a progress bar speaks.
fn screen(bytes: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![vec![]], 0, 0);
    let mut chars = bytes.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                if row == lines.len() {
                    lines.push(vec![]);
                }
            }
            '\x1b' if chars.next_if_eq(&'[').is_some() => {
                let mut number = String::new();
                while let Some(digit) = chars.next_if(|c| c.is_ascii_digit() || "?;".contains(*c)) {
                    number.push(digit);
                }
                let count: usize = number.parse().unwrap_or(0);
                let line: &mut Vec<char> = &mut lines[row];
                match chars.next() {
                    Some('A') => row = row.saturating_sub(count.max(1)),
                    Some('B') => row = (row + count.max(1)).min(lines.len() - 1),
                    Some('C') => column += count.max(1),
                    Some('D') => column = column.saturating_sub(count.max(1)),
                    Some('K') if count == 2 => line.clear(),
                    Some('K') => line.truncate(column),
                    Some('J') => {
                        line.truncate(column);
                        lines.truncate(row + 1);
                    }
                    _ => {}
                }
            }
            c if !c.is_control() => {
                // A full line continues below when more comes.
                if column == COLUMNS {
                    (row, column) = (row + 1, 0);
                    if row == lines.len() {
                        lines.push(vec![]);
                    }
                }
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
            }
            _ => {}
        }
    }
    lines
        .into_iter()
        .map(|line| line.into_iter().collect::<String>().trim_end().to_owned())
        .collect()
}

/// Runs the program on a terminal of its own, which does not show what is typed: `^C` would move what is below. `None` if this machine has no `script`.
fn on_terminal(cluster: &Cluster, flags: &str) -> Option<Child> {
    let command = format!(
        "stty -echo cols {COLUMNS} rows 50; exec {PROGRAM} coordinate --state state --no-report --model softmax --data blobs --listen {} {flags}",
        cluster.address
    );
    let mut script = Command::new("script");
    script.args(["-qefc", &command, "/dev/null"]).current_dir(&cluster.folder);
    script.env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
    let script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    if script.is_err() {
        println!("skipped: a terminal needs the program `script` of util-linux");
    }
    script.ok()
}

#[test]
fn messages_stay_above_the_bar_and_the_end_is_said_once() {
    let cluster = Cluster::new("terminal", "");
    let flags = "--workers 1:2 --strategy ssgd --patience 1 --epochs 100000 --no-save";
    let Some(mut coordinator) = on_terminal(&cluster, flags) else { return };
    let mut output = coordinator.stdout.take().expect("a pipe");
    let reading = std::thread::spawn(move || {
        let mut bytes = vec![];
        let _ = output.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let [first, second] = [cluster.worker(), cluster.worker()];
    cluster.wait_for_line("\"members\":[0,1]");
    std::thread::sleep(Duration::from_secs(1));
    second.kill();
    wait_until("one is lost", || cluster.journal().contains("\"record\":\"freed\""));
    // The bar is drawn again and again after the message.
    std::thread::sleep(Duration::from_secs(1));

    let mut keyboard = coordinator.stdin.take().expect("a pipe");
    keyboard.write_all(b"\x03").expect("it listens");
    let text = reading.join().expect("it reads to the end");
    let _ = coordinator.wait();
    first.succeed();

    let lines = screen(&text);
    let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert!(text.matches("samples/s").count() > 3, "the bar was drawn: {text}");
    let seen =
        ["has joined, at", " was lost", "finishing the round", "stopped at epoch"].map(count);
    assert_eq!(seen, [2, 1, 1, 1], "{}", lines.join("\n"));
    assert_eq!(count(" %, ") + count("samples/s"), 0, "the bar is gone: {}", lines.join("\n"));
}
