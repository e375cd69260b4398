//! A snapshot in the text format of Prometheus.

use std::fmt::Write;

use super::snapshot::{Phase, Snapshot, Worker};

/// The metrics of a run. Counters of a job go on when its coordinator is started again, because they follow from its journal.
pub fn metrics(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    let Snapshot { version, place, strategy, model, data, .. } = snapshot;
    let labels = [
        ("version", version.as_str()),
        ("place", place),
        ("strategy", strategy),
        ("model", model),
        ("data", data),
    ];
    text.family("paceline_job_info", "gauge", "What is trained, and where; always 1.");
    text.sample("paceline_job_info", &labels, 1.0);
    of_training(&mut text, snapshot);
    of_membership(&mut text, snapshot);
    of_workers(&mut text, &snapshot.workers);
    text.0
}

fn of_training(text: &mut Text, it: &Snapshot) {
    text.gauge(
        "paceline_job_running",
        "1 while the job is trained.",
        match it.phase {
            Phase::Training | Phase::Stopping => 1.0,
            Phase::Waiting | Phase::Over | Phase::Failed => 0.0,
        },
    );
    text.gauge("paceline_job_seconds", "How long the job has run.", it.seconds);
    text.counter(
        "paceline_samples_applied_total",
        "Samples that replicas have learned from.",
        it.samples,
    );
    text.gauge("paceline_job_samples", "Samples of the whole job.", it.samples_total as f64);
    // No counter: what is under way when a worker is lost counts until it is applied.
    text.gauge(
        "paceline_samples_wasted",
        "Samples that were computed and not applied.",
        it.samples_wasted as f64,
    );
    text.gauge("paceline_epochs", "Epochs that are done.", it.epochs);
    text.gauge("paceline_rounds", "Rounds of the member that is furthest ahead.", it.rounds as f64);
    text.gauge(
        "paceline_samples_per_second",
        "Samples applied per second, lately.",
        it.samples_per_second,
    );
    text.counter(
        "paceline_sent_bytes_total",
        "Bytes that workers have sent to each other.",
        it.bytes_sent,
    );
    text.optional(
        "paceline_time_left_seconds",
        "Until the job is over, at the present speed.",
        it.seconds_left,
    );
    text.optional("paceline_training_loss", "The training loss over the last half epoch.", it.loss);
    text.optional("paceline_test_loss", "The loss on the test set.", it.test_loss);
    text.optional(
        "paceline_test_accuracy_ratio",
        "The accuracy on the test set, from 0 to 1.",
        it.accuracy,
    );
    let written = it.checkpoint.as_ref().map(|checkpoint| checkpoint.written_at_unix);
    text.optional(
        "paceline_checkpoint_timestamp_seconds",
        "When the newest checkpoint was written.",
        written,
    );
}

fn of_membership(text: &mut Text, it: &Snapshot) {
    let counts = &it.counts;
    text.gauge("paceline_members", "Workers that take part.", members(it) as f64);
    text.counter("paceline_workers_joined_total", "Workers that became members.", counts.joined);
    text.counter("paceline_workers_left_total", "Members that left in good order.", counts.left);
    text.counter("paceline_workers_lost_total", "Workers that were lost.", counts.lost);
    text.counter(
        "paceline_recoveries_total",
        "Losses after which training went on.",
        counts.recovered,
    );
    text.family(
        "paceline_recovery_seconds_total",
        "counter",
        "How long training stood still for losses.",
    );
    text.sample("paceline_recovery_seconds_total", &[], counts.recovery_seconds);
    text.counter(
        "paceline_started_over_total",
        "How often every replica was lost.",
        counts.started_over,
    );
    text.counter(
        "paceline_coordinator_restarts_total",
        "How often the coordinator was started again.",
        counts.restarted,
    );
    let waiting = it.waits.iter().map(|wait| wait.seconds).fold(0.0, f64::max);
    text.gauge(
        "paceline_waiting_seconds",
        "How long members have waited for others in the present exchange.",
        waiting,
    );
}

fn members(snapshot: &Snapshot) -> usize {
    use super::State::{Exchanging, Hanging, Waiting, Working};
    let takes_part = |it: &&Worker| matches!(it.state, Working | Waiting | Exchanging | Hanging);
    snapshot.workers.iter().filter(takes_part).count()
}

type Of = (&'static str, &'static str, &'static str, fn(&Worker) -> Option<f64>);

/// What is measured of each worker.
const OF_WORKERS: [Of; 10] = [
    (
        "paceline_worker_samples_computed_total",
        "counter",
        "Samples in the gradients of a worker.",
        |it| Some(it.samples as f64),
    ),
    (
        "paceline_worker_compute_seconds_total",
        "counter",
        "How long a worker has computed gradients.",
        |it| Some(it.compute_seconds),
    ),
    (
        "paceline_worker_waited_seconds_total",
        "counter",
        "How long a worker has waited for others.",
        |it| Some(it.waited_seconds),
    ),
    (
        "paceline_worker_waited_for_seconds_total",
        "counter",
        "How long others have waited for a worker, added up.",
        |it| Some(it.waited_for_seconds),
    ),
    (
        "paceline_worker_sent_bytes_total",
        "counter",
        "Bytes that a worker has sent to others.",
        |it| Some(it.bytes_sent as f64),
    ),
    (
        "paceline_worker_samples_per_second",
        "gauge",
        "The speed of a worker while it computes, lately.",
        |it| it.samples_per_second,
    ),
    ("paceline_worker_share_ratio", "gauge", "A worker's part of the samples, lately.", |it| {
        Some(it.share)
    }),
    (
        "paceline_worker_busy_ratio",
        "gauge",
        "The part of its time that a worker computes, lately.",
        |it| Some(it.busy),
    ),
    ("paceline_worker_rounds_behind", "gauge", "How many rounds a worker is behind.", |it| {
        Some(it.rounds_behind as f64)
    }),
    ("paceline_worker_silent_seconds", "gauge", "Since a worker last gave a sign of life.", |it| {
        Some(it.silent_seconds)
    }),
];

fn of_workers(text: &mut Text, workers: &[Worker]) {
    for (name, kind, help, value) in OF_WORKERS {
        text.family(name, kind, help);
        for worker in workers.iter().filter(|worker| !worker.state.is_gone()) {
            if let Some(value) = value(worker) {
                text.sample(name, &[("worker", &worker.id.to_string())], value);
            }
        }
    }
    let name = "paceline_worker_state_info";
    text.family(name, "gauge", "What a worker does; always 1.");
    for worker in workers {
        let labels = [("worker", &worker.id.to_string()[..]), ("state", worker.state.name())];
        text.sample(name, &labels, 1.0);
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value as f64);
    }

    /// A gauge that is not there while its value is not known.
    fn optional(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.gauge(name, help, value);
        }
    }
}

/// Names are the user's: what would end a label is escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
