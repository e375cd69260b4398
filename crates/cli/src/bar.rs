//! Progress on stderr: epochs, loss, accuracy, speed, and the worker that the others wait for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_job::run::totals::RunTotals;
use paceline_runtime::{Line, Record, WorkerId};
use paceline_watch::table::{count, duration};

use crate::counted::counted;
use crate::log;
use crate::output::{keep_clear_of, say};

/// The progress bar of one run with two lines below it. If stderr is not a terminal, prints a line from time to time.
pub struct Bar {
    bar: ProgressBar,
    is_wanted: bool,
    clock: Clock,
    lines: u64,
    /// Speed and waiting are measured from here.
    baseline: Baseline,
    printed: Printed,
    silence: Arc<Mutex<Silence>>,
}

/// Which time the run is measured in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Virtual,
    Real,
}

/// The totals a moment ago.
#[derive(Default)]
struct Baseline {
    at: Duration,
    samples: u64,
    waited_for: Vec<(WorkerId, Duration)>,
    /// In real time.
    taken: Option<Instant>,
}

/// The last line that was printed without a terminal.
struct Printed {
    epoch: u64,
    when: Instant,
}

/// The bar is updated after this many journal lines, because an update costs more than a line.
const LINES_PER_UPDATE: u64 = 256;

/// Speed and waiting are averages over about this much real time.
const WINDOW: Duration = Duration::from_secs(2);

/// Time between lines without a terminal; a shorter run prints none.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Less waiting than this fraction of the workers' time is not shown.
const WAIT_MIN: f64 = 0.01;

impl Bar {
    pub fn new(samples_total: u64, clock: Clock, is_wanted: bool) -> Bar {
        let template = "{wide_bar} {percent:>3} %, {eta} left\n{prefix}\n{msg}";
        // A bar among log lines would be none of them.
        let bar = styled(samples_total, is_wanted && !log::is_on(), template);
        let printed = Printed { epoch: 0, when: Instant::now() };
        keep_clear_of((!bar.is_hidden()).then(|| bar.clone()));
        let silence = Arc::new(Mutex::new(Silence::default()));
        if !bar.is_hidden() && clock == Clock::Real {
            watch_for_silence(bar.clone(), silence.clone());
        }
        Bar { bar, is_wanted, clock, lines: 0, baseline: Baseline::default(), printed, silence }
    }

    pub fn show(&mut self, line: &Line, totals: &RunTotals) {
        self.lines += 1;
        let mut is_due = self.lines.is_multiple_of(LINES_PER_UPDATE);
        if !self.bar.is_hidden() && self.clock == Clock::Real {
            is_due |= lock(&self.silence).ends_with(line, totals);
        }
        if !self.is_wanted || !is_due {
            return;
        }
        if self.bar.is_hidden() {
            let epoch = totals.samples() / totals.tally.samples_per_epoch.max(1);
            if epoch > self.printed.epoch && self.printed.when.elapsed() >= LINE_INTERVAL {
                let mut parts = learning(totals, &self.baseline);
                parts.extend(cluster(totals, &self.baseline, self.clock));
                say(&parts.join(", "));
                self.printed = Printed { epoch, when: Instant::now() };
                self.baseline = Baseline::of(totals);
            }
            return;
        }
        self.bar.set_position(totals.samples());
        let columns = usize::from(Term::stderr().size().1);
        self.bar.set_prefix(fitting(&learning(totals, &self.baseline), columns));
        self.bar.set_message(fitting(&cluster(totals, &self.baseline, self.clock), columns));
        if self.baseline.taken.is_none_or(|taken| taken.elapsed() >= WINDOW) {
            self.baseline = Baseline::of(totals);
        }
    }

    pub fn clear(&self) {
        lock(&self.silence).is_over = true;
        keep_clear_of(None);
        self.bar.finish_and_clear();
    }
}

impl Baseline {
    fn of(totals: &RunTotals) -> Baseline {
        let waited_for = totals.waited_for.iter().map(|(worker, time)| (*worker, *time)).collect();
        let taken = Some(Instant::now());
        Baseline { at: totals.end, samples: totals.samples(), waited_for, taken }
    }
}

/// What is known while no line comes: a worker that hangs says nothing, and the others wait for it.
struct Silence {
    since: Instant,
    members: Vec<WorkerId>,
    /// The newest exchange, and who has entered it.
    exchange: u64,
    entered: BTreeSet<WorkerId>,
    is_shown: bool,
    is_over: bool,
}

/// A run that says nothing for this long is shown as one that waits.
const SILENCE_MIN: Duration = Duration::from_secs(2);

impl Default for Silence {
    fn default() -> Silence {
        Silence {
            since: Instant::now(),
            members: vec![],
            exchange: 0,
            entered: BTreeSet::new(),
            is_shown: false,
            is_over: false,
        }
    }
}

impl Silence {
    /// Takes a line; returns whether silence was shown until now.
    fn ends_with(&mut self, line: &Line, totals: &RunTotals) -> bool {
        if let Record::ClockSet { .. } = line.record {
            // Workers that wait, and those that hang, still set their clocks.
            return false;
        }
        self.since = Instant::now();
        match &line.record {
            Record::View { .. } => self.members.clone_from(&totals.members),
            Record::Entered { who, exchange, .. } => {
                if *exchange > self.exchange {
                    (self.exchange, self.entered) = (*exchange, BTreeSet::new());
                }
                self.entered.insert(*who);
            }
            _ => {}
        }
        std::mem::take(&mut self.is_shown)
    }

    /// What is waited for, after so much silence.
    fn words(&self, silent: Duration) -> Option<String> {
        if silent < SILENCE_MIN || self.members.is_empty() {
            return None;
        }
        let time = duration(silent.as_secs_f64());
        let is_missing = |who: &&WorkerId| !self.entered.contains(who);
        let missing: Vec<&WorkerId> = self.members.iter().filter(is_missing).collect();
        Some(match missing[..] {
            [one] if self.members.len() > 1 => format!("waiting for worker {one} for {time}"),
            _ => format!("no news of any worker for {time}"),
        })
    }
}

fn lock(silence: &Mutex<Silence>) -> std::sync::MutexGuard<'_, Silence> {
    silence.lock().unwrap_or_else(|it| it.into_inner())
}

/// Draws the bar while no line does.
fn watch_for_silence(bar: ProgressBar, silence: Arc<Mutex<Silence>>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(SILENCE_MIN / 4);
            let mut silence = lock(&silence);
            if silence.is_over {
                return;
            }
            if let Some(words) = silence.words(silence.since.elapsed()) {
                silence.is_shown = true;
                bar.set_message(words);
            }
        }
    });
}

/// Joins the first parts, as many as fit into one line of the terminal: a line that is broken would be drawn anew below
/// itself at each update.
fn fitting(parts: &[String], columns: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let comma = if text.is_empty() { "" } else { ", " };
        if text.chars().count() + comma.len() + part.chars().count() >= columns {
            break;
        }
        text += comma;
        text += part;
    }
    text
}

/// "epoch 3.4/20, loss 0.210, accuracy 95.1 %, 5,432 samples/s"
fn learning(totals: &RunTotals, baseline: &Baseline) -> Vec<String> {
    let per_epoch = totals.tally.samples_per_epoch.max(1) as f64;
    let (done, all) =
        (totals.samples() as f64 / per_epoch, totals.tally.samples_total as f64 / per_epoch);
    let mut parts = vec![format!("epoch {done:.1}/{}", (100.0 * all).round() / 100.0)];
    if let Some(loss) = totals.curve.last() {
        parts.push(format!("loss {loss:.3}"));
    }
    if let Some(score) = totals.scores.last().filter(|score| score.accuracy.is_finite()) {
        parts.push(format!("accuracy {:.1} %", 100.0 * score.accuracy));
    }
    let seconds = totals.end.saturating_sub(baseline.at).as_secs_f64();
    if seconds > 0.0 && totals.samples() > baseline.samples {
        let speed = (totals.samples() - baseline.samples) as f64 / seconds;
        parts.push(format!("{} samples/s", count(speed as u64)));
    }
    parts
}

/// "4 workers, waiting 41 % (slowest: worker 3), virtual time 10.0 s"
fn cluster(totals: &RunTotals, baseline: &Baseline, clock: Clock) -> Vec<String> {
    let mut parts = vec![counted(totals.members.len(), "worker")];
    if let Some((part, slowest)) = waiting(totals, baseline) {
        parts.push(format!("waiting {part:.0} % (slowest: worker {slowest})"));
    }
    let time = duration(totals.end.as_secs_f64());
    let clock = if clock == Clock::Virtual { "virtual time" } else { "time" };
    parts.push(format!("{clock} {time}"));
    parts
}

/// Returns which percentage of their time workers waited for the slowest one since the baseline, and that worker.
fn waiting(totals: &RunTotals, baseline: &Baseline) -> Option<(f64, WorkerId)> {
    let before = |worker: WorkerId| {
        let known = baseline.waited_for.iter().find(|(other, _)| *other == worker);
        known.map_or(Duration::ZERO, |(_, time)| *time)
    };
    let since = totals
        .waited_for
        .iter()
        .map(|(worker, time)| (time.saturating_sub(before(*worker)), *worker));
    let (waited, slowest) = since.max()?;
    let others = totals.members.len().saturating_sub(1) as f64;
    let seconds = totals.end.saturating_sub(baseline.at).as_secs_f64();
    let part = waited.as_secs_f64() / (seconds * others);
    (part.is_finite() && part >= WAIT_MIN).then(|| (100.0 * part.min(1.0), slowest))
}

/// Returns an empty bar for `len` samples.
pub fn progress(len: u64, is_wanted: bool) -> ProgressBar {
    styled(len, is_wanted, "{wide_bar} {percent:>3} %, {elapsed}, {msg}")
}

/// Returns a bar for many runs, with an estimate of the remaining time.
pub fn runs_bar(is_wanted: bool) -> ProgressBar {
    styled(0, is_wanted, "{wide_bar} {percent:>3} %, {elapsed}, {eta} left")
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

    fn apply(totals: &mut RunTotals, samples: u64) {
        let (round, version, loss_first, loss_last) = (0, 0, None, None);
        let spans = Spans::one(0, samples);
        let (samples_total, past) = (None, None);
        let record =
            Record::Resumed { round, version, spans, loss_first, loss_last, samples_total, past };
        totals.tally.read(&Line { at: Duration::ZERO, record });
    }

    fn totals() -> RunTotals {
        let mut totals = RunTotals::default();
        totals.end = Duration::from_secs(10);
        (totals.tally.samples_per_epoch, totals.tally.samples_total) = (100, 1000);
        apply(&mut totals, 340);
        totals.members = vec![WorkerId(0), WorkerId(1), WorkerId(2)];
        totals.waited_for.insert(WorkerId(2), Duration::from_secs(5));
        totals
    }

    #[test]
    fn the_lines_show_progress_speed_and_the_slowest_worker() {
        let baseline = Baseline { at: Duration::from_secs(8), samples: 300, ..Baseline::default() };

        assert_eq!(learning(&totals(), &baseline).join(", "), "epoch 3.4/10, 20 samples/s");
        assert_eq!(
            cluster(&totals(), &baseline, Clock::Real).join(", "),
            "3 workers, waiting 100 % (slowest: worker 2), time 10.0 s"
        );
    }

    #[test]
    fn both_lines_fit_into_80_and_into_40_columns() {
        let mut totals = totals();
        (totals.tally.samples_per_epoch, totals.tally.samples_total) = (60_000, 1_215_000);
        totals.end = Duration::from_secs(36_000);
        apply(&mut totals, 804_000);
        totals.members = (0..1024).map(WorkerId).collect();
        totals.waited_for = [(WorkerId(1015), Duration::from_secs(1_000_000_000))].into();
        totals.curve.points.push((Duration::from_secs(9), 0.21));
        totals.scores.push(Score { at: Duration::ZERO, samples: 100, loss: 0.2, accuracy: 1.0 });
        let at = Duration::from_secs(35_999);
        let baseline = Baseline { at, samples: 4_000, ..Baseline::default() };

        let parts = [learning(&totals, &baseline), cluster(&totals, &baseline, Clock::Virtual)];
        let lines = parts.clone().map(|parts| fitting(&parts, 80));
        let narrow = parts.map(|parts| fitting(&parts, 40));

        assert_eq!(lines[0], "epoch 13.4/20.25, loss 0.210, accuracy 100.0 %, 800,000 samples/s");
        assert!(lines[1].contains("1024 workers, waiting 100 % (slowest: worker 1015), virtual"));
        assert!(lines.iter().all(|line| line.len() < 80), "{lines:?}");
        assert_eq!(narrow, ["epoch 13.4/20.25, loss 0.210", "1024 workers"]);
    }

    #[test]
    fn a_run_that_says_nothing_names_the_worker_that_it_waits_for() {
        let mut silence = Silence::default();
        let mut totals = RunTotals::default();
        totals.members = (0..3).map(WorkerId).collect();
        let mut hear = |record| {
            let line = Line { at: Duration::ZERO, record };
            silence.ends_with(&line, &totals)
        };
        let reason = String::new();
        hear(Record::View { number: 1, members: totals.members.clone(), reason });
        for (who, exchange) in [(1, 6), (0, 6), (2, 6), (0, 7), (2, 7)] {
            let (view, round, samples, compute) = (1, exchange, 8, Duration::ZERO);
            let who = WorkerId(who);
            hear(Record::Entered { who, view, exchange, round, samples, compute });
        }

        assert_eq!(silence.words(Duration::from_secs(1)), None);
        let words = silence.words(Duration::from_secs(5)).expect("it is silent");
        assert_eq!(words, "waiting for worker 1 for 5.00 s");
        silence.is_shown = true;
        let clock = Record::ClockSet { who: WorkerId(1), error: Duration::ZERO };
        assert!(!silence.ends_with(&Line { at: Duration::ZERO, record: clock }, &totals));
        assert!(
            silence.ends_with(&Line { at: Duration::ZERO, record: Record::Restarted }, &totals)
        );
    }

    #[test]
    fn only_waiting_since_the_baseline_is_shown() {
        let baseline = Baseline::of(&totals());
        let mut later = totals();
        later.end = Duration::from_secs(20);

        let none = cluster(&later, &baseline, Clock::Virtual).join(", ");
        later.waited_for.insert(WorkerId(2), Duration::from_secs(10));
        let some = cluster(&later, &baseline, Clock::Virtual).join(", ");

        assert_eq!(none, "3 workers, virtual time 20.0 s");
        assert_eq!(some, "3 workers, waiting 25 % (slowest: worker 2), virtual time 20.0 s");
    }
}
