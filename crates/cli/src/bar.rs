//! Progress on stderr: how far a run is, how it learns, and who holds the others up.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_job::run::totals::RunTotals;
use paceline_runtime::WorkerId;
use paceline_watch::table::{count, duration};

use crate::output::{say, some};

/// The bar of one run, and a line below it; on anything but a terminal a line now and then.
pub struct Bar {
    bar: ProgressBar,
    is_wanted: bool,
    /// "virtual", or nothing where time is real.
    time: &'static str,
    lines: u64,
    /// Where pace and waits are measured from.
    mark: Mark,
    said: Said,
}

/// How things stood a moment ago.
#[derive(Default)]
struct Mark {
    at: Duration,
    samples: u64,
    waited_for: Vec<(WorkerId, Duration)>,
    /// By the clock.
    made: Option<Instant>,
}

/// What was said last where there is no terminal.
struct Said {
    epoch: u64,
    when: Instant,
}

/// A line of the journal is cheap, a message for the bar less so.
const LINES_PER_MESSAGE: u64 = 256;

/// Pace and waits are those of about so long, by the clock.
const WINDOW: Duration = Duration::from_secs(2);

/// Without a terminal a line is worth this long; a short run says nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Less than this part of the others' time is not worth a word.
const WAIT_MIN: f64 = 0.01;

impl Bar {
    pub fn new(samples_total: u64, time: &'static str, is_wanted: bool) -> Bar {
        let template = "{wide_bar} {percent:>3} %, {eta} left\n{wide_msg}";
        let bar = styled(samples_total, is_wanted, template);
        let said = Said { epoch: 0, when: Instant::now() };
        Bar { bar, is_wanted, time, lines: 0, mark: Mark::default(), said }
    }

    pub fn show(&mut self, account: &RunTotals) {
        self.lines += 1;
        if !self.is_wanted || !self.lines.is_multiple_of(LINES_PER_MESSAGE) {
            return;
        }
        if self.bar.is_hidden() {
            let epoch = account.samples() / account.tally.samples_per_epoch.max(1);
            if epoch > self.said.epoch && self.said.when.elapsed() >= PATIENCE {
                say(&message(account, &self.mark, self.time, &LONG));
                self.said = Said { epoch, when: Instant::now() };
                self.mark = Mark::of(account);
            }
            return;
        }
        self.bar.set_position(account.samples());
        let mut message = message(account, &self.mark, self.time, &SHORT);
        if self.time.is_empty() {
            message += &format!(" ({})", duration(self.bar.elapsed().as_secs() as f64));
        }
        self.bar.set_message(message);
        if self.mark.made.is_none_or(|made| made.elapsed() >= WINDOW) {
            self.mark = Mark::of(account);
        }
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Mark {
    fn of(account: &RunTotals) -> Mark {
        let waited_for = account.waited_for.iter().map(|(who, time)| (*who, *time)).collect();
        Mark { at: account.end, samples: account.samples(), waited_for, made: Some(Instant::now()) }
    }
}

/// What is said around numbers: before and after the accuracy, after the pace, before the slowest.
struct Words {
    accuracy: (&'static str, &'static str),
    pace: &'static str,
    slowest: &'static str,
}

const LONG: Words =
    Words { accuracy: ("accuracy ", ""), pace: " samples/s", slowest: "waiting for worker" };

/// Few enough for 80 columns. What is longer is cut off at its end: what can be missed comes last.
const SHORT: Words = Words { accuracy: ("", " right"), pace: "/s", slowest: "wait for" };

/// "epoch 3.4/20, loss 0.210, accuracy 95.1 %, 5,432 samples/s, 4 members, 41 % waiting for worker 3"
fn message(account: &RunTotals, mark: &Mark, time: &str, words: &Words) -> String {
    let per_epoch = account.tally.samples_per_epoch.max(1) as f64;
    let (done, all) =
        (account.samples() as f64 / per_epoch, account.tally.samples_total as f64 / per_epoch);
    let mut parts = vec![format!("epoch {done:.1}/{}", (100.0 * all).round() / 100.0)];
    if let Some(loss) = account.curve.last() {
        parts.push(format!("loss {loss:.3}"));
    }
    if let Some(score) = account.scores.last().filter(|score| score.accuracy.is_finite()) {
        let (before, after) = words.accuracy;
        parts.push(format!("{before}{:.1} %{after}", 100.0 * score.accuracy));
    }
    let seconds = account.end.saturating_sub(mark.at).as_secs_f64();
    if seconds > 0.0 && account.samples() > mark.samples {
        let pace = (account.samples() - mark.samples) as f64 / seconds;
        parts.push(format!("{}{}", count(pace as u64), words.pace));
    }
    parts.push(some(account.members.len(), "member"));
    let slowest = slowest(account, mark, seconds);
    parts.extend(slowest.map(|(part, who)| format!("{part:.0} % {} {who}", words.slowest)));
    let mut text = parts.join(", ");
    if !time.is_empty() {
        text += &format!(" ({} {time})", duration(account.end.as_secs_f64()));
    }
    text
}

/// For how many percent of their time the others waited since the mark, and for whom most.
fn slowest(account: &RunTotals, mark: &Mark, seconds: f64) -> Option<(f64, WorkerId)> {
    let before = |who: WorkerId| {
        let known = mark.waited_for.iter().find(|(other, _)| *other == who);
        known.map_or(Duration::ZERO, |(_, time)| *time)
    };
    let since =
        account.waited_for.iter().map(|(who, time)| (time.saturating_sub(before(*who)), *who));
    let (waited, who) = since.max()?;
    let others = account.members.len().saturating_sub(1) as f64;
    let part = waited.as_secs_f64() / (seconds * others);
    (part.is_finite() && part >= WAIT_MIN).then(|| (100.0 * part.min(1.0), who))
}

/// An empty bar of so many samples.
pub fn progress(len: u64, is_wanted: bool) -> ProgressBar {
    styled(len, is_wanted, "{bar:12} {human_pos}/{human_len} samples, {elapsed}  {wide_msg}")
}

/// A bar for many runs, with an estimate of the time left.
pub fn runs_bar(is_wanted: bool) -> ProgressBar {
    styled(0, is_wanted, "{bar:24} {human_pos}/{human_len} samples, {elapsed}, {eta} left")
}

fn styled(len: u64, is_wanted: bool, template: &str) -> ProgressBar {
    let target =
        if is_wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    ProgressBar::with_draw_target(Some(len), target).with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use paceline_job::run::totals::Score;
    use paceline_runtime::{Line, Record, Spans};

    use super::*;

    fn apply(account: &mut RunTotals, samples: u64) {
        let (round, version, loss_first, loss_last) = (0, 0, None, None);
        let spans = Spans::one(0, samples);
        let record = Record::Resumed { round, version, spans, loss_first, loss_last };
        account.tally.read(&Line { at: Duration::ZERO, record });
    }

    fn account() -> RunTotals {
        let mut account = RunTotals::default();
        account.end = Duration::from_secs(10);
        (account.tally.samples_per_epoch, account.tally.samples_total) = (100, 1000);
        apply(&mut account, 340);
        account.members = vec![WorkerId(0), WorkerId(1), WorkerId(2)];
        account.waited_for.insert(WorkerId(2), Duration::from_secs(5));
        account
    }

    #[test]
    fn the_message_tells_progress_pace_and_who_is_waited_for() {
        let mark = Mark { at: Duration::from_secs(8), samples: 300, ..Mark::default() };

        let expected = "epoch 3.4/10, 20 samples/s, 3 members, 100 % waiting for worker 2";
        assert_eq!(message(&account(), &mark, "", &LONG), expected);
    }

    #[test]
    fn all_that_matters_fits_on_80_columns() {
        let mut account = account();
        (account.tally.samples_per_epoch, account.tally.samples_total) = (60_000, 1_200_000);
        apply(&mut account, 804_000);
        account.members = (0..16).map(WorkerId).collect();
        account.waited_for = [(WorkerId(15), Duration::from_secs(12))].into();
        account.curve.points.push((Duration::from_secs(9), 0.21));
        account.scores.push(Score { at: Duration::ZERO, samples: 100, loss: 0.2, accuracy: 0.951 });
        let mark = Mark { at: Duration::from_secs(8), samples: 784_000, ..Mark::default() };

        let told = message(&account, &mark, "virtual", &SHORT);
        let expected =
            "epoch 13.4/20, loss 0.210, 95.1 % right, 10,000/s, 16 members, 40 % wait for 15";

        assert_eq!(told.strip_suffix(" (10.0 s virtual)"), Some(expected));
        assert!(expected.len() < 80);
    }

    #[test]
    fn only_waits_since_the_mark_count() {
        let mark = Mark::of(&account());
        let mut later = account();
        later.end = Duration::from_secs(20);

        let told = message(&later, &mark, "virtual", &LONG);
        assert_eq!(told, "epoch 3.4/10, 3 members (20.0 s virtual)");
        later.waited_for.insert(WorkerId(2), Duration::from_secs(10));
        assert!(message(&later, &mark, "", &LONG).ends_with(", 25 % waiting for worker 2"));
    }
}
