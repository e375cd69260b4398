//! The progress bar on stderr: how far a run is, and how it learns.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_job::account::Account;
use paceline_watch::table::duration;

/// The bar of one run. On anything but a terminal it shows nothing.
pub struct Bar {
    bar: ProgressBar,
    /// "virtual", or nothing where time is real and the bar shows it anyway.
    time: &'static str,
    lines: u64,
}

/// A line of the journal is cheap, a message for the bar less so.
const LINES_PER_MESSAGE: u64 = 256;

impl Bar {
    pub fn new(samples_total: u64, time: &'static str, is_wanted: bool) -> Bar {
        Bar { bar: progress(samples_total, is_wanted), time, lines: 0 }
    }

    pub fn show(&mut self, account: &Account) {
        self.lines += 1;
        if self.bar.is_hidden() || !self.lines.is_multiple_of(LINES_PER_MESSAGE) {
            return;
        }
        let mut parts = vec![];
        if !self.time.is_empty() {
            parts.push(format!("{} {}", duration(account.end.as_secs_f64()), self.time));
        }
        if let Some(loss) = account.curve.last() {
            parts.push(format!("loss {loss:.2}"));
        }
        if let Some(score) = account.scores.last() {
            parts.push(format!("accuracy {:.0} %", 100.0 * score.accuracy));
        }
        parts.push(format!("{} members", account.members.len()));
        self.bar.set_position(account.samples);
        self.bar.set_message(parts.join(", "));
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// An empty bar of so many samples.
pub fn progress(len: u64, is_wanted: bool) -> ProgressBar {
    let target =
        if is_wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let template = "{bar:12} {human_pos}/{human_len} samples, {elapsed}  {wide_msg}";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    ProgressBar::with_draw_target(Some(len), target).with_style(style.progress_chars("=> "))
}
