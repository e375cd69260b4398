//! Where a worker's gradients are computed: on a thread of ours, or at its host.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::inbox::Teller;
use paceline_learn::Vector;
use paceline_runtime::edge::{Ask, Compute, Event, GradientMemory, News, Place, Workspace};
use paceline_runtime::host::{HostAsks, ToHost};
use paceline_runtime::{HostLine, Spans, Ticket, WorkerId};

/// Starts the host of a worker, on a thread of its own.
pub type StartHost = Box<dyn Fn(HostLine) + Send + Sync>;

type Work = (Ticket, Arc<Vector>, Spans);

/// Where a worker's gradients are computed. The other end of the channel ends when this one is dropped, with the worker.
pub(crate) enum Computing {
    Thread(Sender<Work>),
    Host(HostAsks),
}

impl Computing {
    /// Starts the thread that computes a worker's gradients.
    pub fn on_thread(
        me: WorkerId,
        compute: Compute,
        pace: Duration,
        workspace: Workspace,
        done: Teller,
    ) -> Computing {
        let (computing, work) = mpsc::channel();
        std::thread::Builder::new()
            .name(format!("gradient-{me}"))
            .spawn(move || gradients(me, compute, (pace, workspace), work, done))
            .expect("the system can start another thread");
        Computing::Thread(computing)
    }

    /// Gives a worker its host, whose answers are news for the worker.
    pub fn at_host(
        me: WorkerId,
        start: &StartHost,
        memory: Option<GradientMemory>,
        events: Teller,
    ) -> Computing {
        let reply = move |news: Option<News>| {
            // A worker is lost with its host.
            let crashed = Event::Crashed { who: me };
            drop(events.send(news.map_or(crashed, |news| Event::For { to: me, news })));
        };
        let (asks, line) = HostLine::new(me, Box::new(reply));
        start(line.with_memory(memory));
        Computing::Host(asks)
    }

    /// Computes a gradient. If the thread or the host has died, its last word is already in the worker's inbox.
    pub fn compute(&self, ticket: Ticket, at: Place, spans: Spans) {
        match (self, at) {
            (Computing::Thread(work), Place::Ours(params)) => {
                drop(work.send((ticket, params, spans)));
            }
            (Computing::Host(_), Place::Theirs { ahead, moment, .. }) => {
                self.ask(ticket, Ask::Compute { spans, ahead, moment });
            }
            _ => unreachable!("replicas are with hosts if the cluster has hosts"),
        }
    }

    pub fn ask(&self, ticket: Ticket, ask: Ask) {
        if let Computing::Host(asks) = self {
            drop(asks.send(ToHost::Asked(ticket, ask)));
        }
    }

    pub fn show(&self, ahead: Spans) {
        if let Computing::Host(asks) = self {
            drop(asks.send(ToHost::Ahead(ahead)));
        }
    }
}

/// Computes gradients one after another; emulates a slower machine by sleeping out its pace.
fn gradients(
    me: WorkerId,
    compute: Compute,
    (pace, mut workspace): (Duration, Workspace),
    work: Receiver<Work>,
    done: Teller,
) {
    let _guard = PanicGuard { me, done: done.clone() };
    for (ticket, params, spans) in work {
        let since = Instant::now();
        let gradient = compute(&params, &spans, &mut workspace);
        let end = since + pace.saturating_mul(u32::try_from(spans.len()).unwrap_or(u32::MAX));
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        drop(params);
        let news = News::Computed { ticket, gradient, took: None };
        if done.send(Event::For { to: me, news }).is_err() {
            return;
        }
    }
}

/// Tells the worker if its model panics: it would wait for that gradient forever.
struct PanicGuard {
    me: WorkerId,
    done: Teller,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            drop(self.done.send(Event::Crashed { who: self.me }));
        }
    }
}
