//! The page over real connections, without a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paceline_page::{Ask, Page, PageConfig, Saved, Secret};
use paceline_runtime::{Line, Reader, Record, Spans, WorkerId};
use paceline_watch::status::{Actions, Phase, Snapshot};

/// Far longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

struct Running {
    page: Page,
    token: Secret,
    asked: Receiver<Ask>,
    saved: Arc<Mutex<Option<Saved>>>,
}

fn page() -> Running {
    page_with(Actions { save: true, stop: true, put_out: true, ban: false })
}

fn page_with(actions: Actions) -> Running {
    let (sender, asked) = channel();
    let sender = Mutex::new(sender);
    let (token, saved) = (Secret::random(), Arc::<Mutex<Option<Saved>>>::default());
    let newest = saved.clone();
    let page = Page::start(PageConfig {
        listen: "127.0.0.1:0".parse().expect("it is an address"),
        hosts: vec!["node7".to_owned()],
        version: "1.2.3".to_owned(),
        place: "threads".to_owned(),
        actions,
        token: token.clone(),
        ask: Box::new(move |ask, answer| {
            sender.lock().expect("no holder panics").send(ask).expect("the test listens");
            match ask {
                Ask::Stop => drop(answer),
                Ask::PutOut(who) => answer(Err(format!("worker {who} is no member now"))),
                _ => answer(Ok("a checkpoint is being saved".to_owned())),
            }
        }),
        is_stopping: Box::new(|| false),
        members_min: 1,
        newest_checkpoint: Box::new(move || newest.lock().expect("no holder panics").clone()),
    });
    Running { page: page.expect("a port is free"), token, asked, saved }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("it can be set");
    stream
}

/// Sends a request with these headers; returns head and body of the answer.
fn ask(running: &Running, request: &str, headers: &[(&str, &str)]) -> (String, String) {
    let mut stream = connect(running.page.address());
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(stream, "{request} HTTP/1.1\r\n{headers}\r\n").expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

fn get(running: &Running, path: &str) -> (String, String) {
    ask(running, &format!("GET {path}"), &[("Host", "127.0.0.1")])
}

fn snapshot(running: &Running) -> Snapshot {
    let (head, body) = get(running, "/status.json");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(&body).expect("it is a snapshot")
}

fn began(model: &str) -> Line {
    let record = Record::Began {
        version: 1,
        strategy: "ssgd".to_owned(),
        seed: 1,
        samples_total: 1_000_000,
        samples_per_epoch: 100,
        model: model.to_owned(),
        data: String::new(),
        params: 3,
        kernels: String::new(),
        together: true,
        central: false,
    };
    Line { at: Duration::ZERO, record }
}

fn applied(n: u64) -> Line {
    let record = Record::Applied {
        who: WorkerId(0),
        version: n,
        spans: Spans::one(10 * n, 10 * n + 10),
        loss_sum: 10.0,
        weight: None,
        staleness: 0,
        rate: 0.1,
        round: None,
        result: None,
    };
    Line { at: Duration::from_millis(n), record }
}

fn view(members: u32) -> Line {
    let members = (0..members).map(WorkerId).collect();
    let record = Record::View { number: 1, members, reason: "a test".to_owned() };
    Line { at: Duration::ZERO, record }
}

/// Reads events of a stream, one at a time.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(running: &Running) -> Events {
        let mut stream = connect(running.page.address());
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
        let mut events = Events(BufReader::new(stream));
        assert!(events.line().contains("200 OK"));
        events
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("it goes on");
        line
    }

    /// The next state; `None` when the stream has ended.
    fn next(&mut self) -> Option<Snapshot> {
        loop {
            let line = self.line();
            if line.is_empty() {
                return None;
            }
            if let Some(json) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(json.trim_end()).expect("it is a snapshot"));
            }
        }
    }
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_page_is_one_file_that_loads_nothing_from_elsewhere() {
    let running = page();

    let (head, body) = get(&running, "/");

    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let policy =
        head.lines().find(|line| line.starts_with("content-security-policy")).expect(&head);
    assert!(policy.contains("default-src 'none'; script-src 'nonce-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let nonce = policy.split('\'').find_map(|part| part.strip_prefix("nonce-")).expect(policy);
    assert_eq!(body.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert!(
        !body.contains("{{nonce}}") && !body.contains("://") || body.matches("://").count() == 1
    );
    assert!(!body.contains("innerHTML") && !body.contains("outerHTML"));
    assert!(!body.contains(running.token.text()));
    let (_, again) = get(&running, "/");
    assert!(!again.contains(nonce), "every answer has a nonce of its own");
}

#[test]
fn state_health_and_metrics_are_those_of_the_journal() {
    let running = page();
    assert_eq!(snapshot(&running).phase, Phase::Waiting);
    let mut reader = running.page.reader();
    [began("mlp"), view(2), applied(1), applied(2)].iter().for_each(|line| reader.read(line));

    wait("the state is that of the lines", || snapshot(&running).samples == 20);
    let it = snapshot(&running);
    let (_, metrics) = get(&running, "/metrics");
    let (health, _) = ask(&running, "GET /healthz", &[("Host", "anything.example")]);
    let (nothing, _) = get(&running, "/nothing");

    assert_eq!((it.phase, it.workers.len(), it.version.as_str()), (Phase::Training, 2, "1.2.3"));
    assert!(metrics.contains("paceline_samples_applied_total 20\n"), "{metrics}");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(nothing.starts_with("HTTP/1.1 404"), "{nothing}");
}

#[test]
fn requests_for_other_names_are_refused() {
    let running = page();
    let status = |host: &[(&str, &str)]| ask(&running, "GET /status.json", host).0;

    for host in ["127.0.0.1", "localhost:8080", "node7:1", "[::1]:80"] {
        assert!(status(&[("Host", host)]).starts_with("HTTP/1.1 200"), "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example:80", ""] {
        let answer = status(&[("Host", host)]);
        assert!(answer.starts_with("HTTP/1.1 421"), "{host}: {answer}");
    }
    assert!(!status(&[]).starts_with("HTTP/1.1 200"));
    for path in ["/", "/events", "/metrics"] {
        let (answer, _) = ask(&running, &format!("GET {path}"), &[("Host", "evil.example")]);
        assert!(answer.starts_with("HTTP/1.1 421"), "{path}: {answer}");
    }
}

#[test]
fn nobody_acts_without_the_token_in_the_header() {
    let running = page();
    let token = running.token.text().to_owned();
    let bearer = format!("Bearer {token}");
    let wrong = format!("Bearer {}", Secret::random().text());
    let host = ("Host", "127.0.0.1:1");
    let post =
        |path: &str, headers: &[(&str, &str)]| ask(&running, &format!("POST {path}"), headers);

    let refused = [
        post("/save", &[host]),
        post("/save", &[host, ("Authorization", &wrong)]),
        post("/save", &[host, ("Authorization", &token)]),
        post(&format!("/save?token={token}"), &[host]),
        post("/save", &[host, ("Cookie", &format!("token={token}"))]),
    ];
    for (head, _) in &refused {
        assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    }
    let authorized = ("Authorization", bearer.as_str());
    let (head, _) = post("/save", &[("Host", "evil.example"), authorized]);
    assert!(head.starts_with("HTTP/1.1 421"), "{head}");
    let (head, _) = post("/save", &[host, authorized, ("Origin", "http://evil.example")]);
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let (head, _) = ask(&running, "GET /save", &[host, authorized]);
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    assert_eq!(running.asked.try_recv().ok(), None, "nothing was asked of the run");

    let (head, said) = post("/save", &[host, authorized, ("Origin", "http://127.0.0.1:1")]);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(said, "a checkpoint is being saved\n");
    assert_eq!(running.asked.try_recv(), Ok(Ask::Save));
}

#[test]
fn what_the_run_says_is_passed_on() {
    let running = page();
    let bearer = format!("Bearer {}", running.token.text());
    let post = |path: &str| {
        let headers = [("Host", "localhost"), ("Authorization", bearer.as_str())];
        let (head, body) = ask(&running, &format!("POST {path}"), &headers);
        (head.split(' ').nth(1).map(str::to_owned).expect(&head), body)
    };

    let refused = post("/workers/3/put-out");
    let unsupported = post("/workers/3/ban");
    let dropped = post("/stop");
    let nonsense = post("/workers/-1/put-out");

    assert_eq!(refused, ("409".to_owned(), "worker 3 is no member now\n".to_owned()));
    assert_eq!(unsupported.0, "501");
    assert_eq!(dropped.0, "503");
    assert_eq!(nonsense.0, "400");
    let asked: Vec<Ask> = running.asked.try_iter().collect();
    assert_eq!(asked, [Ask::PutOut(WorkerId(3)), Ask::Stop]);
}

/// Whatever a job is called, it is data: the page writes it as text, and JSON and metrics escape it.
#[test]
fn names_cannot_become_markup() {
    let running = page();
    let name = "</script><img src=x onerror=alert(1)>\"\n\\";
    running.page.reader().read(&began(name));

    wait("the name is known", || !snapshot(&running).model.is_empty());
    let (_, html) = get(&running, "/");
    let (_, metrics) = get(&running, "/metrics");

    assert_eq!(snapshot(&running).model, name);
    assert!(!html.contains("alert(1)"));
    assert!(metrics.contains("model=\"</script><img src=x onerror=alert(1)>\\\"\\n\\\\\""));
    let (head, _) = get(&running, "/status.json");
    assert!(head.contains("application/json") && head.contains("nosniff"), "{head}");
}

#[test]
fn every_reader_gets_the_whole_state_first_and_then_news() {
    let running = page();
    let mut reader = running.page.reader();
    [began("mlp"), view(2), applied(1)].iter().for_each(|line| reader.read(line));

    let mut first = Events::open(&running);
    wait("the state has arrived", || first.next().is_some_and(|it| it.samples == 10));
    reader.read(&applied(2));
    wait("the news have arrived", || first.next().is_some_and(|it| it.samples == 20));
    drop(first);
    let mut reloaded = Events::open(&running);

    let it = reloaded.next().expect("the whole state");
    assert_eq!((it.samples, it.model.as_str(), it.workers.len()), (20, "mlp", 2));
}

#[test]
fn at_the_end_readers_get_the_last_state() {
    let running = page();
    let mut reader = running.page.reader();
    [began("mlp"), view(1)].iter().for_each(|line| reader.read(line));
    let mut events = Events::open(&running);
    assert!(events.next().is_some());
    reader.read(&Line { at: Duration::from_secs(1), record: Record::Over });
    std::thread::sleep(Duration::from_millis(300));

    drop(running);

    let mut last = None;
    while let Some(state) = events.next() {
        last = Some(state);
    }
    assert_eq!(last.expect("a last state").phase, Phase::Over);
}

#[test]
fn a_checkpoint_that_appears_is_shown_with_its_age() {
    let running = page();
    assert_eq!(snapshot(&running).checkpoint, None);
    let at = std::time::SystemTime::now() - Duration::from_secs(100);
    let path = "runs/round-000007".into();
    *running.saved.lock().expect("no holder panics") = Some(Saved { path, at });

    wait("it is found", || snapshot(&running).checkpoint.is_some());

    let it = snapshot(&running);
    let age = it.checkpoint.expect("it was there").age_seconds;
    assert!((100.0..200.0).contains(&age), "{age}");
}

/// Readers that take nothing do not hold up the journal, and take no memory: all of them are given at most one buffer, and
/// the state is computed for all at once.
#[test]
fn readers_that_take_nothing_hold_up_nobody() {
    let running = page();
    let mut reader = running.page.reader();
    [began("mlp"), view(64)].iter().for_each(|line| reader.read(line));
    let stuck: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut stream = connect(running.page.address());
            write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
            stream
        })
        .collect();
    let before = resident();

    let since = Instant::now();
    (0..200_000).for_each(|n| reader.read(&applied(n)));
    let took = since.elapsed();
    let mut other = Events::open(&running);
    wait("others are served", || other.next().is_some_and(|it| it.samples > 0));

    assert!(took < LONG / 2, "{took:?} for 200,000 lines");
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    drop(stuck);
}

/// Half of the connections are left for metrics and actions, however many browsers watch.
#[test]
fn there_are_only_so_many_readers_and_others_are_still_answered() {
    let running = page();
    let mut readers: Vec<Events> = (0..32).map(|_| Events::open(&running)).collect();
    readers.iter_mut().for_each(|it| assert!(it.next().is_some()));

    let mut refused = connect(running.page.address());
    write!(refused, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
    let mut line = String::new();
    BufReader::new(refused).read_line(&mut line).expect("it answers");
    assert!(line.starts_with("HTTP/1.1 503"), "{line}");
    assert!(get(&running, "/metrics").0.starts_with("HTTP/1.1 200"));

    readers.pop();
    wait("a place is free again", || {
        let mut stream = connect(running.page.address());
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).is_ok_and(|_| line.contains("200 OK"))
    });
}

/// Memory of this process that is in use.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
