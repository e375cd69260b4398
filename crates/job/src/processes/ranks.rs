//! Runs a job on the ranks of an MPI job: the coordinator and a worker on rank 0, a worker on each of the others.
//!
//! The launcher decides how many ranks there are. They are fixed: a lost rank ends the job, which can be resumed from its last
//! checkpoint on any number of ranks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use paceline_mpi::{LinksConfig, Loss, Ranks, Sums, Watch as RankWatch};
use paceline_net::processes::message::{Down, Saves, Up, VERSION};
use paceline_net::processes::{Clock, Ended, Gradients, Process, WorkerConfig};
use paceline_runtime::Snapshot;
use paceline_runtime::coordination::Rules;
use paceline_runtime::edge::Compute;

use super::office::{DeskId, Incoming, Office, OfficeConfig};
use super::worker::{Evaluating, WorkerSignals, admitted, live_in, prepare, shape, spawn};
use super::{OfficeRun, OnProcesses, data_hash, job_text, secret, until_concluded};
use crate::checkpoint::Writer;
use crate::config::Job;
use crate::error::{Error, JobError, RunError};
use crate::job::Prepared;
use crate::pace;
use crate::recipes::Recipe;
use crate::run::evaluator::Evaluator;
use crate::run::observer::Observer;
use crate::run::{Next, Request, Running, SaveRequests, Watch};
use crate::threads::{TrainOptions, paces};

/// How ranks exchange, and when one is lost.
#[derive(Clone, Copy, Debug)]
pub struct RankOptions {
    pub sums: Sums,
    /// A rank that is silent for this long is lost.
    pub patience: Duration,
}

/// A launcher that ends a job sends a signal, and kills all ranks about a second later. One that has been silent for this long by
/// then is the reason for the signal.
const SILENT_AT_STOP: Duration = Duration::from_millis(500);
/// How often other threads look whether the job can go on.
const LOOK: Duration = Duration::from_millis(50);
/// Between processes of one MPI job, addresses mean nothing.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Trains on all ranks; this process is rank 0. `job` is what `prepared` was made of: the other ranks prepare it again.
pub fn train_on_ranks(
    ranks: &Arc<Ranks>,
    job: &Job,
    prepared: &Prepared,
    options: TrainOptions<'_>,
    rank_options: RankOptions,
) -> Result<OnProcesses, Error> {
    let TrainOptions { speeds, pace, stop, saving, faults, requests, readers } = options;
    pace::check_speeds(&speeds)?;
    if faults.is_some() {
        return Err(JobError::FaultsOnProcesses.into());
    }
    let mut prepared = prepared.clone();
    prepared.plan.members_min = 1;
    let text = job_text(job, &prepared, paces(&prepared, &speeds, pace), saving);
    let saves = |Saves { every_rounds }: Saves| paceline_runtime::SavePlan { every_rounds };
    prepared.plan.saves = text.saves.map(saves);
    let prepared = &prepared;
    let coordination = prepared.strategy().coordination();
    let writer = saving.map(|saving| Writer::start(saving, prepared, &speeds)).transpose()?;
    let (Some((downs, heard)), Some(down)) = (ranks.take_coordinator(), ranks.take_down()) else {
        return Err(RunError::CoordinatorGone.into());
    };
    ranks.set_patience(rank_options.patience);
    downs[1..].iter().for_each(|to| drop(to.send(Down::Job(text.clone()))));
    let data = data_hash(&prepared.task);
    ranks.expect(prepared.plan.initial.len());
    if let Err(error) = wait_for_hellos(ranks, &heard, data) {
        refuse(&downs, &error.to_string());
        return Err(error);
    }
    let (arrive, incoming) = mpsc::channel();
    for (rank, to) in downs.into_iter().enumerate() {
        // In rank order, so that a worker's id is its rank.
        let hello = Up::Hello { version: VERSION, data, address: NOWHERE };
        drop(arrive.send((rank as DeskId, Incoming::Opened { to })));
        drop(arrive.send((rank as DeskId, Incoming::Said(Box::new(hello)))));
    }
    pass_on(ranks.watch(), heard, arrive);
    let done = |snapshot: &Arc<Snapshot>| snapshot.done.clone();
    let office = Office::new(OfficeConfig {
        rules: Rules::new(prepared.plan.samples_total, ranks.size, coordination),
        done: prepared.plan.resumed.as_ref().map(done).unwrap_or_default(),
        elapsed: prepared.past.time,
        // Every rank has it by now.
        job: Default::default(),
        data,
        secret: secret(),
        incoming,
    });
    let evaluator = Evaluator::background(prepared.task.clone());
    let observer = Observer::new(prepared, (coordination, evaluator), readers);
    let worker = {
        let (ranks, prepared, pace) = (ranks.clone(), prepared.clone(), text.pace.clone());
        let name = std::thread::Builder::new().name("worker-0".to_owned());
        name.spawn(move || live(&ranks, &prepared, rank_options.sums, &pace, down))
    };
    let worker = worker.map_err(|error| RunError::Spawn { why: error.to_string() })?;
    let (watch, stopped_at) = (ranks.watch(), None);
    let mut run = RankRun { office, watch, stop: stop.clone(), stopped_at };
    let save_requests = saving.map(|saving| SaveRequests::new(saving, coordination));
    let watch = Watch { observer, writer, save_requests, requests, stopped: false };
    match until_concluded(prepared, &mut run, watch, &stop) {
        // The worker of this rank waits for a rank that is gone, and ends with the process.
        Err(failed) => Err(match failed.error {
            Error::Run(RunError::RankLost { why, .. }) => {
                RunError::RankLost { why, newest: failed.saved.newest }.into()
            }
            error => error,
        }),
        Ok(trained) => {
            if let Some(loss) = run.watch.loss() {
                // The worker of this rank may wait for the lost one: nobody waits for it.
                let newest = trained.saved.and_then(|saved| saved.newest);
                return Err(RunError::RankLost { why: loss.to_string(), newest }.into());
            }
            match worker.join() {
                Ok(Ok(())) => Ok(trained),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(RunError::WorkerPanicked.into()),
            }
        }
    }
}

/// Tells all other ranks that there is no job for them, unless they have heard of one.
pub fn refuse_ranks(ranks: &Ranks, why: &str) {
    if let Some((downs, _)) = ranks.take_coordinator() {
        refuse(&downs, why);
    }
}

fn refuse(downs: &[Sender<Down>], why: &str) {
    downs[1..].iter().for_each(|to| drop(to.send(Down::Refused { why: why.to_owned() })));
}

/// Works for the coordinator on rank 0, until nothing is left to do. `begin` sees the job before it is prepared.
pub fn work_on_rank(
    ranks: &Ranks,
    options: RankOptions,
    recipes: &[Recipe],
    begin: impl FnOnce(&Job),
) -> Result<(), Error> {
    let Some(down) = ranks.take_down() else { return Err(RunError::CoordinatorGone.into()) };
    ranks.set_patience(options.patience);
    let text = match down.recv() {
        Ok(Down::Job(text)) => text,
        Ok(Down::Refused { why }) => return Err(RunError::Refused { why }.into()),
        _ => return Err(RunError::CoordinatorGone.into()),
    };
    let pace = text.pace.clone();
    if let Ok(job) = serde_json::from_str(&text.json) {
        begin(&job);
    }
    let prepared = match prepare(text, recipes, None) {
        Ok(prepared) => prepared,
        Err(error) => {
            // Rank 0 says so, and answers.
            drop(ranks.up.send(Up::Failed { why: error.to_string() }));
            return Err(admitted(&down).err().map_or(error, Error::Run));
        }
    };
    ranks.expect(prepared.plan.initial.len());
    let data = data_hash(&prepared.task);
    drop(ranks.up.send(Up::Hello { version: VERSION, data, address: NOWHERE }));
    live(ranks, &prepared, options.sums, &pace, down)
}

/// Waits until every other rank has prepared the same job.
fn wait_for_hellos(ranks: &Ranks, heard: &Receiver<(usize, Up)>, data: u64) -> Result<(), Error> {
    let watch = ranks.watch();
    let mut missing = ranks.size - 1;
    while missing > 0 {
        match heard.recv_timeout(LOOK) {
            Ok((_, Up::Hello { data: theirs, .. })) if theirs == data => missing -= 1,
            Ok((rank, Up::Hello { .. })) => return Err(JobError::RankData { rank }.into()),
            Ok((rank, Up::Failed { why })) => return Err(JobError::Rank { rank, why }.into()),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(RunError::CoordinatorGone.into()),
        }
        if let Some(loss) = watch.loss() {
            return Err(RunError::RankLost { why: loss.to_string(), newest: None }.into());
        }
    }
    Ok(())
}

/// Starts the thread that passes on what ranks say to the office. Once a rank is lost, all are closed, so that nobody waits.
fn pass_on(watch: RankWatch, heard: Receiver<(usize, Up)>, arrive: Sender<(DeskId, Incoming)>) {
    spawn("words", move || {
        loop {
            let said = match heard.recv_timeout(LOOK) {
                Ok((rank, up)) => (rank as DeskId, Incoming::Said(Box::new(up))),
                Err(RecvTimeoutError::Timeout) if watch.loss().is_none() => continue,
                Err(_) => break,
            };
            if arrive.send(said).is_err() {
                return;
            }
        }
        (0..watch.size() as DeskId).for_each(|rank| drop(arrive.send((rank, Incoming::Closed))));
    });
}

/// A worker's life on its rank.
fn live(
    ranks: &Ranks,
    prepared: &Prepared,
    sums: Sums,
    pace: &[Duration],
    down: Receiver<Down>,
) -> Result<(), Error> {
    let Some((id, now, ..)) = admitted(&down)? else { return Ok(()) };
    let plan = &prepared.plan;
    let (up, clock) = (ranks.up.clone(), Clock::from(now));
    let (evaluations, requests) = mpsc::channel();
    let evaluating = Evaluating::start(prepared, requests, up.clone());
    let computes = Arc::<AtomicBool>::default();
    let worker = WorkerConfig {
        me: id,
        clock: clock.clone(),
        gradients: Gradients::Ours {
            compute: noticed(prepared.compute(), computes.clone()),
            pace: pace.get(id.0 as usize).copied().unwrap_or_default(),
        },
        coordination: prepared.strategy().coordination(),
        up: up.clone(),
        down,
        evaluations,
    };
    let shape = shape(plan);
    let links = |events| Ok(ranks.links(LinksConfig { shape, sums, clock, events, computes }));
    let process =
        Process::over(worker, links).map_err(|error| RunError::Spawn { why: error.to_string() })?;
    // Signals are for rank 0: members of an MPI job do not leave.
    let signals = WorkerSignals::default();
    let lived = live_in(id, prepared, process, evaluating, &up, &signals);
    if let Err(error) = &lived {
        drop(up.send(Up::Failed { why: format!("rank {}: {error}", ranks.rank) }));
    }
    match lived?.0 {
        Ended::Dismissed => Ok(()),
        Ended::PutOut { why, .. } => Err(RunError::PutOut { why }.into()),
        Ended::Disconnected => Err(RunError::CoordinatorGone.into()),
    }
}

/// Gradients whose computation can be noticed by another thread.
fn noticed(compute: Compute, computes: Arc<AtomicBool>) -> Compute {
    Arc::new(move |params, spans, workspace| {
        computes.store(true, Ordering::Relaxed);
        let gradient = compute(params, spans, workspace);
        computes.store(false, Ordering::Relaxed);
        gradient
    })
}

/// A run on ranks, as rank 0 sees it.
struct RankRun {
    office: Office,
    watch: RankWatch,
    stop: Arc<AtomicBool>,
    stopped_at: Option<Instant>,
}

impl RankRun {
    /// Why the job cannot go on, if it cannot.
    fn loss(&mut self) -> Option<Loss> {
        if self.stop.load(Ordering::Relaxed) {
            let at = *self.stopped_at.get_or_insert_with(Instant::now);
            if at.elapsed() >= SILENT_AT_STOP / 2
                && let Some(loss) = self.watch.silent_for(SILENT_AT_STOP)
            {
                return Some(loss);
            }
        }
        self.watch.loss()
    }
}

impl OfficeRun for RankRun {
    fn office(&mut self) -> &mut Office {
        &mut self.office
    }

    fn end(&mut self) {
        self.office.dismiss();
    }
}

impl Running for RankRun {
    fn next(&mut self) -> Result<Next, RunError> {
        if let Some(loss) = self.loss() {
            return Err(RunError::RankLost { why: loss.to_string(), newest: None });
        }
        if let Some(why) = self.office.failures.pop() {
            return Err(RunError::WorkerFailed { why });
        }
        if let Some(output) = self.office.next() {
            return Ok(Next::Output(output));
        }
        Ok(if self.office.has_ended() { Next::Ended } else { Next::Idle })
    }

    fn stop(&mut self) {
        self.office.stop();
    }

    fn save(&mut self) {
        self.office.save();
    }

    fn put_out(&mut self, _: Request) -> Result<(), String> {
        Err("a rank of an MPI job cannot be put out: without it the job ends".to_owned())
    }
}
