//! The page's server: a thread of its own, until it is dropped.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use paceline_watch::status::Actions;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{interval, sleep, timeout};

use crate::answers::{Seen, routes};
use crate::connection::Connection;
use crate::secret::Secret;
use crate::shared::{Asked, Facts, PageReader, Saved, Shared};

pub struct PageConfig {
    /// Port 0: any that is free.
    pub listen: SocketAddr,
    /// Other names under which the page may be asked for than addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Of the program.
    pub version: String,
    /// Where the workers run.
    pub place: String,
    pub actions: Actions,
    pub token: Secret,
    pub ask: Asked,
    /// Whether the run was asked to end, in any way.
    pub is_stopping: Box<dyn Fn() -> bool + Send + Sync>,
    /// With fewer members, training waits for others.
    pub members_min: usize,
    /// Looks for the newest checkpoint; may wait for a disk.
    pub newest_checkpoint: Box<dyn Fn() -> Option<Saved> + Send + Sync>,
}

/// A page that is served until it is dropped.
pub struct Page {
    shared: Arc<Shared>,
    address: SocketAddr,
    ends: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Connections at once, readers among them.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to say what it wants.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// What is kept of one answer until its reader takes it.
const BUFFER_MAX: usize = 64 << 10;
const LOOK_FOR_CHECKPOINTS: Duration = Duration::from_secs(2);
/// How long the program waits at its end until browsers have the last state.
const LAST_MAX: Duration = Duration::from_millis(500);

impl Page {
    pub fn start(config: PageConfig) -> io::Result<Page> {
        let PageConfig { listen, hosts, version, place, actions, token, ask, .. } = config;
        let (is_stopping, members_min) = (config.is_stopping, config.members_min);
        let facts = Facts { version, place, actions, hosts, token, ask, is_stopping, members_min };
        let shared = Arc::new(Shared::new(facts));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(listen))?;
        let address = listener.local_addr()?;
        let (ends, has_ended) = watch::channel(false);
        let seen = Seen { shared: shared.clone(), ends: has_ended, readers: Arc::default() };
        let newest = config.newest_checkpoint;
        let thread = std::thread::Builder::new().name("page".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, seen, newest));
            // A look at a disk that does not answer must not hold up the end of the program.
            runtime.shutdown_background();
        })?;
        Ok(Page { shared, address, ends, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the journal of the run for the page.
    pub fn reader(&self) -> PageReader {
        PageReader(self.shared.clone())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.ends.send_replace(true);
        // A thread that panicked has printed why.
        self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(
    listener: TcpListener,
    seen: Seen,
    newest: Box<dyn Fn() -> Option<Saved> + Send + Sync>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut ends = seen.ends.clone();
    tokio::spawn(look_for_checkpoints(seen.shared.clone(), newest));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ends.wait_for(|ends| *ends) => break,
        };
        let Ok((stream, _)) = accepted else {
            // Too many files are open, say: it helps to wait.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Whoever finds no place is closed at once.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let service = TowerToHyperService::new(routes(seen.clone()));
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
            // One request for each connection: none is held open for nothing.
            http.keep_alive(false).max_buf_size(BUFFER_MAX);
            let io = TokioIo::new(Connection::new(stream));
            // A client that goes away in the middle is no concern of ours.
            let _ = http.serve_connection(io, service).await;
            drop(place);
        });
    }
    drop(listener);
    // All places are free when the last state has been sent.
    let _ = timeout(LAST_MAX, places.acquire_many(CONNECTIONS_MAX as u32)).await;
}

async fn look_for_checkpoints(
    shared: Arc<Shared>,
    newest: Box<dyn Fn() -> Option<Saved> + Send + Sync>,
) {
    let newest: Arc<dyn Fn() -> Option<Saved> + Send + Sync> = newest.into();
    let mut ticks = interval(LOOK_FOR_CHECKPOINTS);
    loop {
        ticks.tick().await;
        let newest = newest.clone();
        if let Ok(found) = tokio::task::spawn_blocking(move || newest()).await {
            shared.looked(found);
        }
    }
}

/// The folder and the time of a checkpoint, as [`PageConfig::newest_checkpoint`] returns them.
impl Saved {
    pub fn found(path: PathBuf) -> Option<Saved> {
        let at = std::fs::metadata(&path).and_then(|it| it.modified()).ok()?;
        Some(Saved { path, at })
    }
}
