//! Runs tasks against a cluster; the same executor in virtual time and in real time.
//!
//! A task asks for things through its [`Port`] and sleeps until the cluster has answered. Time
//! therefore passes only at `.await`. One task runs at a time.

mod inbox;
mod port;
mod waiting;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::edge::{Cluster, ClusterOutput, Event, News};
use crate::ids::WorkerId;
use crate::journal::{Line, Record};

pub use inbox::Inbox;
pub use port::Port;
pub use waiting::{Interrupt, Stuck, Wanted};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Runs the tasks of all workers that one cluster (or one process of it) hosts.
pub struct Executor {
    shared: Rc<RefCell<Shared>>,
    tasks: FxHashMap<u64, (WorkerId, Task)>,
}

/// What the executor and the ports of its tasks share.
struct Shared {
    cluster: Box<dyn Cluster>,
    inboxes: FxHashMap<WorkerId, Rc<RefCell<Inbox>>>,
    ready: VecDeque<u64>,
    started: Vec<(u64, WorkerId, Task)>,
    running: u64,
    serial: u64,
}

/// Whether there is more to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Continue,
    /// Every task has ended and the job is over.
    Over,
}

impl Executor {
    pub fn new(cluster: Box<dyn Cluster>) -> Executor {
        let shared = Shared {
            cluster,
            inboxes: FxHashMap::default(),
            ready: VecDeque::new(),
            started: Vec::new(),
            running: 0,
            serial: 0,
        };
        Executor { shared: Rc::new(RefCell::new(shared)), tasks: FxHashMap::default() }
    }

    pub fn now(&self) -> Duration {
        self.shared.borrow().cluster.now()
    }

    /// Runs until every task has ended. `start` makes the task of a worker that starts.
    pub fn run(&mut self, start: &mut dyn FnMut(Port) -> Task) -> Result<(), Stuck> {
        while self.turn(start)? == Turn::Continue {}
        Ok(())
    }

    /// Waits for one event, delivers it, and runs all tasks that can run.
    pub fn turn(&mut self, start: &mut dyn FnMut(Port) -> Task) -> Result<Turn, Stuck> {
        let event = self.shared.borrow_mut().cluster.next();
        match event {
            Some(Event::Started { who }) => {
                let port = self.admit(who);
                port.start(start(port.clone()));
            }
            Some(Event::Crashed { who }) => self.bury(who),
            Some(Event::For { to, news }) => self.shared.borrow_mut().deliver(to, news),
            // The last workers may have ended the job themselves, by what they told the coordinator.
            None if self.is_over() => return Ok(Turn::Over),
            None => return Err(self.stuck()),
        }
        while let Some(id) = self.next_ready() {
            self.resume(id);
        }
        Ok(if self.is_over() { Turn::Over } else { Turn::Continue })
    }

    fn is_over(&self) -> bool {
        self.tasks.is_empty() && self.shared.borrow().cluster.is_over()
    }

    fn admit(&mut self, who: WorkerId) -> Port {
        let inbox = Rc::<RefCell<Inbox>>::default();
        let mut shared = self.shared.borrow_mut();
        shared.inboxes.insert(who, inbox.clone());
        shared.record(Record::Started { who });
        Port::new(who, inbox, self.shared.clone())
    }

    fn bury(&mut self, who: WorkerId) {
        self.tasks.retain(|_, (owner, _)| *owner != who);
        let mut shared = self.shared.borrow_mut();
        if shared.inboxes.remove(&who).is_some() {
            shared.record(Record::Crashed { who });
        }
    }

    fn next_ready(&mut self) -> Option<u64> {
        let mut shared = self.shared.borrow_mut();
        self.tasks.extend(shared.started.drain(..).map(|(id, owner, task)| (id, (owner, task))));
        shared.ready.pop_front()
    }

    fn resume(&mut self, id: u64) {
        let Some((_, task)) = self.tasks.get_mut(&id) else { return };
        self.shared.borrow_mut().running = id;
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.tasks.remove(&id);
        }
    }

    fn stuck(&self) -> Stuck {
        let shared = self.shared.borrow();
        let mut waiting: Vec<(WorkerId, Wanted)> = self
            .tasks
            .iter()
            .filter_map(|(id, (owner, _))| {
                let inbox = shared.inboxes.get(owner)?.borrow();
                let (_, wanted) = inbox.waiting.iter().find(|(task, _)| task == id)?;
                Some((*owner, wanted.clone()))
            })
            .collect();
        // Sorted, because the order of a HashMap must not be visible.
        waiting.sort_by_key(|(who, wanted)| (*who, format!("{wanted:?}")));
        Stuck { waiting }
    }
}

impl Drop for Executor {
    /// Tasks hold ports, which hold what the executor shares: dropping them ends the circle, also if a task
    /// panicked before another one that it had started could run.
    fn drop(&mut self) {
        self.tasks.clear();
        let started =
            self.shared.try_borrow_mut().map(|mut shared| std::mem::take(&mut shared.started));
        drop(started);
    }
}

impl Shared {
    fn record(&mut self, record: Record) {
        let at = self.cluster.now();
        self.cluster.emit(ClusterOutput::Line(Line { at, record }));
    }

    fn deliver(&mut self, to: WorkerId, news: News) {
        let Some(inbox) = self.inboxes.get(&to) else { return };
        let mut inbox = inbox.borrow_mut();
        inbox.deliver(news);
        // A worker has at most two tasks, so each looks for itself whether it can continue.
        self.ready.extend(inbox.waiting.drain(..).map(|(task, _)| task));
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}
