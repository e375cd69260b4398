//! `paceline coordinate`: coordinates workers on other machines, which join with `paceline join`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use paceline_job::checkpoint::Saved;
use paceline_job::processes::{
    CoordinateOptions, Coordinating, EtcdPlace, EtcdTls, PlaceError, StatePlace,
};
use paceline_job::{Job, Recipe, TrainOptions};

use crate::bar::{Bar, Clock};
use crate::checkpoint::{CheckpointFlags, run_folder, saving, say_how_to_resume};
use crate::error::{CliError, CliResult, UsageError};
use crate::flags::JobFlags;
use crate::local_workers::{LocalWorkers, WORKERS_HERE_MAX};
use crate::log::{self, LogFlag};
use crate::output::say;
use crate::outputs::OutputFlags;
use crate::page::{PageFlags, Watched};
use crate::processes::{PATIENCE, seconds};
use crate::readers::RunReaders;
use crate::stop::Stop;
use crate::summary::{ReportContext, report_run};
use crate::token::{TOKEN_HOURS, TOKEN_USES, hours};

/// Coordinate workers on other machines, which join with `paceline join`
#[derive(Args)]
// The flags of a job have a number of workers, too.
#[command(
    after_help = EXAMPLES,
    allow_negative_numbers = true,
    mut_arg("workers", |arg| arg.long("first-workers").hide(true)),
    mut_arg("checkpoints", |arg| arg.help(CHECKPOINTS))
)]
pub struct Coordinate {
    /// The training algorithm (see `paceline strategies`) [default: ssgd, or the job file's]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    /// Begin with MIN workers, pause with fewer, and take at most MAX
    #[arg(id = "range", long = "workers", value_name = "MIN:MAX", value_parser = range)]
    members: (u32, Option<u32>),
    /// Address and port to listen on: 0.0.0.0:7070 for workers on other machines; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Folder of the log, the journal, the authority and the token; a coordinator that is started again continues there. Or
    /// etcd://HOST:PORT[,HOST:PORT]/NAME: a second coordinator with the same one is a standby and takes over when the first one dies
    #[arg(long, value_name = "PLACE", value_parser = state)]
    state: State,
    /// Encrypt connections to etcd: its certificate must be signed by an authority in this file (PEM), for the name in --state
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Show etcd this certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// Where workers reach this coordinator, if not at the address of --listen; only for a state in etcd
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Start N workers on this machine, too; they end with the coordinator
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=WORKERS_HERE_MAX))]
    workers_here: u32,
    /// A worker that is silent for this many seconds counts as lost [default: 5]
    #[arg(long, value_name = "S", value_parser = seconds)]
    patience: Option<Duration>,
    /// Neither encrypt nor authenticate: anybody who reaches the port can join, read and change everything
    #[arg(long)]
    insecure: bool,
    /// Keep the authority's key and certificate in this file instead of the state folder [default: authority.pem there]. With a
    /// state in etcd it must be given, and be the same for all coordinators
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    authority: Option<PathBuf>,
    /// How many workers may join with the first token; `paceline token` makes others
    #[arg(long, value_name = "N", default_value_t = TOKEN_USES)]
    token_uses: u32,
    /// For how many hours the first token is valid
    #[arg(long, value_name = "H", default_value = TOKEN_HOURS, value_parser = hours)]
    token_hours: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogFlag,
    #[command(flatten)]
    checkpoints: CheckpointFlags,
    #[command(flatten)]
    job: JobFlags,
    #[command(flatten)]
    outputs: OutputFlags,
    #[command(flatten)]
    page: PageFlags,
}

const CHECKPOINTS: &str = "Save checkpoints into this folder: periodically, when stopped, and at the end \
     [default: checkpoints in the state folder; with a state in etcd, name a folder that all coordinators share]";

const PLACE: &str = "machines";

const INSECURE: &str = "--insecure: anybody who reaches this port can join the job, read its data and change what it learns";

const EXAMPLES: &str = "\
Examples:
  paceline coordinate --job job.toml --workers 2:8 --listen 0.0.0.0:7070 --state run1
  paceline join coordinator.example:7070 --token-file token
  paceline coordinate --job job.toml --workers 2:8 --listen 10.0.0.1:7070 --state etcd://10.0.0.9:2379/run1 --authority key.pem --checkpoints /shared/run1

It needs no data: the first worker that joins says what they are. The first line that it prints is the command to type on the other machines. Killed and started again
with the same command, it continues from its log; the workers train on meanwhile.";

/// The file in the state folder that says that its job is done.
pub const DONE: &str = "done";

/// What is said instead of beginning a job that is done.
pub fn done(folder: &Path) -> String {
    let folder = folder.display();
    format!("the job in {folder} is done; name another --state to begin a new one")
}

/// What --state names.
#[derive(Clone)]
enum State {
    Folder(PathBuf),
    Etcd(EtcdPlace),
}

impl Coordinate {
    pub fn run(&self, recipes: &[Recipe]) -> CliResult {
        self.log.begin();
        let checkpoint = self.checkpoints.resumed()?;
        let from = checkpoint.as_ref().map(|checkpoint| checkpoint.path.clone());
        let mut job = match &checkpoint {
            Some(checkpoint) => self.job.over(checkpoint.manifest.job.clone()),
            None => self.job.job_with(self.strategy.as_deref())?,
        };
        let place = self.place()?;
        if let (None, StatePlace::Folder(folder)) = (&checkpoint, &place) {
            self.checkpoints.save_in(&mut job, &folder.join("checkpoints"))?;
        }
        self.checkpoints.apply(&mut job, checkpoint.as_ref())?;
        self.check_shared(&job)?;
        let folder = self.folder();
        let saving = saving(&job, from)?;
        let read = self.job.files(&job);
        let stop = Stop::on_signals("finishing the round; press Ctrl-C again to stop at once")?;
        self.page.check()?;
        let options = self.options(place, &stop);
        let opened = Coordinating::open(&job, checkpoint, recipes, options);
        let mut coordinating = match opened {
            Err(error) if stop.is_requested() => {
                return Err(CliError::Stopped { code: stop.code(), message: error.to_string() });
            }
            opened => opened?,
        };
        let outputs = self.outputs.check(coordinating.name(), !self.json, None, &read)?;
        if self.insecure {
            say(INSECURE);
        }
        match (coordinating.is_over(), coordinating.was_stopped()) {
            (false, _) => say(&coordinating.invitation(!log::is_on())),
            (true, false) => say(&done(&folder)),
            (true, true) => say(&format!(
                "this job was stopped; to continue it, name another --state and --resume {}",
                folder.join("checkpoints").display()
            )),
        }
        let mut page = self.page.open(&Watched {
            place: PLACE,
            can_lose_members: true,
            saving: saving.as_ref(),
            stop: &stop,
            members_min: self.members.0,
            token_file: Some(folder.join("page-token")),
        })?;
        let here = match coordinating.is_over() {
            true => LocalWorkers::none(),
            false => self.start_workers(coordinating.address())?,
        };
        let Some(prepared) = coordinating.first_worker(&stop.requested)? else {
            let message = "stopped before a worker had joined".to_owned();
            return Err(CliError::Stopped { code: stop.code(), message });
        };
        let bar = Bar::new(prepared.plan.samples_total, Clock::Real, !self.json);
        let mut readers = RunReaders::new(bar, outputs).shown_on(page.reader()).telling_losses();
        let options = TrainOptions {
            stop: stop.requested.clone(),
            saving: saving.as_ref(),
            requests: page.requests.take(),
            readers: vec![&mut readers],
            ..TrainOptions::default()
        };
        let (ended, saved) = match coordinating.train(&prepared, options) {
            Ok(trained) => (Ok(trained.result), trained.saved.unwrap_or_default()),
            Err(failure) => (Err(failure), Saved::default()),
        };
        drop(here);
        if let (Ok(result), State::Folder(folder)) = (&ended, &self.state)
            && !result.stopped
        {
            // Launcher tasks that are started again look for this file. A write error is ignored: a full disk is reported elsewhere.
            let _ = std::fs::write(folder.join(DONE), "");
        }
        if let Ok(result) = &ended {
            say_how_to_resume(
                "coordinate --workers MIN:MAX --state NEW",
                &saved,
                result,
                &prepared,
            );
        }
        let (place, json, stop) = (PLACE, self.json, &stop);
        let (speeds, saved_in): (&[f64], _) = (&[], saved.newest.as_deref());
        let context =
            ReportContext { job: &job, prepared: &prepared, place, json, stop, speeds, saved_in };
        report_run(&context, ended, readers)?;
        saved.error.map_or(Ok(()), |error| Err(CliError::failed(error)))
    }

    /// Where the state is, and where workers reach this coordinator.
    fn place(&self) -> CliResult<StatePlace> {
        let place = match &self.state {
            State::Folder(_) if self.advertise.is_some() => {
                return Err(UsageError::AdvertiseWithoutEtcd.into());
            }
            State::Folder(_) if self.etcd_ca.is_some() => {
                return Err(UsageError::EtcdCaWithoutEtcd.into());
            }
            State::Folder(folder) => return Ok(StatePlace::Folder(folder.clone())),
            State::Etcd(place) => place.clone(),
        };
        let is_known = !self.listen.ip().is_unspecified() && self.listen.port() != 0;
        let address = match &self.advertise {
            Some(address) => address.clone(),
            None if is_known => self.listen.to_string(),
            None => return Err(UsageError::AdvertiseNeeded { listen: self.listen }.into()),
        };
        let is_address = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            && address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        if !is_address {
            return Err(UsageError::Advertise { address }.into());
        }
        if self.authority.is_none() && !self.insecure {
            return Err(UsageError::AuthorityNeeded.into());
        }
        let tls = self.etcd_ca.clone().map(|authorities| EtcdTls {
            authorities,
            own: self.etcd_cert.clone().zip(self.etcd_key.clone()),
        });
        Ok(StatePlace::Etcd { place, tls, address, folder: self.folder() })
    }

    /// The folder of what only this process needs.
    fn folder(&self) -> PathBuf {
        match &self.state {
            State::Folder(folder) => folder.clone(),
            // Two coordinators of a job may be on one machine.
            State::Etcd(place) => run_folder(&format!("{}-{}", place.name, self.listen.port())),
        }
    }

    /// With a standby, what is learned must not be on a disk that dies with this machine, unless that is wanted.
    fn check_shared(&self, job: &Job) -> CliResult {
        let is_shared = matches!(self.state, State::Etcd(_));
        if is_shared && job.checkpoints.is_none() && !self.checkpoints.saves_nothing() {
            return Err(UsageError::CheckpointsNeeded.into());
        }
        Ok(())
    }

    fn options(&self, state: StatePlace, stop: &Stop) -> CoordinateOptions {
        let (members_min, members_max) = self.members;
        CoordinateOptions {
            listen: self.listen,
            state,
            authority: self.authority.clone(),
            members_first: members_min,
            members_min,
            members_max,
            patience: self.patience.unwrap_or(PATIENCE),
            insecure: self.insecure,
            token_uses: self.token_uses,
            token_lasts: self.token_hours,
            stop: stop.requested.clone(),
            say,
        }
    }

    /// Starts workers on this machine.
    fn start_workers(&self, listens_at: SocketAddr) -> CliResult<LocalWorkers> {
        let mut address = listens_at;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let mut arguments: Vec<OsString> = vec!["join".into(), address.to_string().into()];
        arguments.extend(["--token-file".into(), self.folder().join("token").into()]);
        if self.insecure {
            arguments.push("--insecure".into());
        }
        arguments.extend(self.log.argument().map(OsString::from));
        if let Some(folder) = self.job.data_dir() {
            arguments.extend(["--data-dir".into(), folder.into()]);
        }
        LocalWorkers::start(&arguments, None, self.workers_here)
    }
}

fn state(text: &str) -> Result<State, PlaceError> {
    match EtcdPlace::is_meant_by(text) {
        true => text.parse().map(State::Etcd),
        false => Ok(State::Folder(text.into())),
    }
}

fn range(text: &str) -> Result<(u32, Option<u32>), UsageError> {
    let (min, max) = text.split_once(':').map_or((text, None), |(min, max)| (min, Some(max)));
    let number = |text: &str| text.parse::<u32>().ok().filter(|it| *it > 0);
    let min = number(min).ok_or(UsageError::Members)?;
    let max = match max {
        None | Some("") => None,
        Some(max) => Some(number(max).filter(|max| *max >= min).ok_or(UsageError::Members)?),
    };
    Ok((min, max))
}
