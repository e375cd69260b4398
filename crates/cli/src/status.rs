//! `paceline status`: the live page of a run, in a terminal.

use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::Args;
use paceline_watch::status::{Phase, Snapshot, terminal};
use thiserror::Error;

use crate::error::{CliError, CliResult};
use crate::output::{print, print_json, say};

/// Show how a run is doing: progress, which worker is slow or hangs, and what it costs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Status {
    /// The run's page, as `--page` of `train` or `coordinate` printed it
    #[arg(value_name = "HOST:PORT")]
    page: String,
    /// Show it again every second, until the run is over
    #[arg(long)]
    watch: bool,
    /// Print it as JSON; with --watch, one line each time
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  paceline train --page 8080
  paceline status 127.0.0.1:8080 --watch
  paceline status 127.0.0.1:8080 --json";

#[derive(Debug, Error)]
pub enum StatusError {
    #[error("{0} names no host and port: give HOST:PORT, such as 127.0.0.1:8080")]
    Address(String),
    #[error("nobody listens at {0}: the run is over, or it was started without --page")]
    Nobody(String),
    #[error("cannot reach {page}: {source}")]
    Unreachable { page: String, source: io::Error },
    #[error("{0} does not answer within 5 seconds")]
    Silent(String),
    #[error(
        "the page at {0} does not answer to that name: use its address, or start the run with --page-host NAME"
    )]
    OtherName(String),
    #[error("{0} answers, but it is not the page of a run")]
    NoPage(String),
    #[error("{page} is the page of another version of Paceline: {why}")]
    OtherVersion { page: String, why: String },
}

const ANSWER_MAX: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_secs(1);
/// A page that does not answer for this long is given up.
const GONE_AFTER: Duration = Duration::from_secs(30);
const BYTES_MAX: u64 = 8 << 20;

impl Status {
    pub fn run(&self) -> CliResult {
        let page = &page_address(&self.page);
        self.follow(|| fetch(page), |snapshot| self.show(snapshot), PERIOD, GONE_AFTER)
    }

    /// Shows what `fetch` finds, again and again if that is wanted, until the run is over or nothing is found for so long.
    fn follow(
        &self,
        mut fetch: impl FnMut() -> Result<Snapshot, StatusError>,
        show: impl Fn(&Snapshot) -> CliResult,
        period: Duration,
        gone_after: Duration,
    ) -> CliResult {
        let first = fetch().map_err(CliError::failed)?;
        show(&first)?;
        let (mut phase, mut lost_since) = (first.phase, None);
        while self.watch && !matches!(phase, Phase::Over | Phase::Failed) {
            std::thread::sleep(period);
            match fetch() {
                Ok(snapshot) => {
                    (phase, lost_since) = (snapshot.phase, None);
                    show(&snapshot)?;
                }
                // Its last state may have come and gone between two looks.
                Err(_) if phase == Phase::Stopping => {
                    say("the run has ended");
                    return Ok(());
                }
                // A coordinator that is started again answers again.
                Err(error) => match lost_since {
                    None => {
                        lost_since = Some(Instant::now());
                        say(&format!("{error}; trying again for {} s", gone_after.as_secs()));
                    }
                    Some(since) if since.elapsed() > gone_after => {
                        say("the run has ended, or its page is gone");
                        return Ok(());
                    }
                    Some(_) => {}
                },
            }
        }
        Ok(())
    }

    fn show(&self, snapshot: &Snapshot) -> CliResult {
        if self.json && self.watch {
            let line = serde_json::to_string(snapshot).expect("plain data has a JSON form");
            return print(&(line + "\n"));
        }
        if self.json {
            return print_json(snapshot);
        }
        if self.watch && io::stdout().is_terminal() {
            // The cursor goes home, and everything below is erased.
            let mut stdout = io::stdout().lock();
            let _ = stdout.write_all(b"\x1b[H\x1b[J");
        }
        print(&terminal(snapshot))
    }
}

/// HOST:PORT of a page that the user has named, perhaps by its address in a browser, or by its port alone.
pub fn page_address(named: &str) -> String {
    let page = named.trim_start_matches("http://").trim_end_matches('/');
    match page.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => page.to_owned(),
    }
}

/// Reads what the page knows now.
pub fn fetch(page: &str) -> Result<Snapshot, StatusError> {
    let name = || page.to_owned();
    let unreachable = |source: io::Error| match source.kind() {
        ErrorKind::ConnectionRefused => StatusError::Nobody(name()),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => StatusError::Silent(name()),
        // It hangs up on what it does not understand.
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => StatusError::NoPage(name()),
        _ => StatusError::Unreachable { page: name(), source },
    };
    let addresses = match page.to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<_>>(),
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            return Err(StatusError::Address(name()));
        }
        Err(source) => return Err(StatusError::Unreachable { page: name(), source }),
    };
    let mut tried = Err(ErrorKind::ConnectionRefused.into());
    for address in addresses {
        tried = TcpStream::connect_timeout(&address, ANSWER_MAX);
        if tried.is_ok() {
            break;
        }
    }
    let mut stream = tried.map_err(unreachable)?;
    stream.set_read_timeout(Some(ANSWER_MAX)).map_err(unreachable)?;
    stream.set_write_timeout(Some(ANSWER_MAX)).map_err(unreachable)?;
    let request = format!("GET /status.json HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(unreachable)?;
    let mut answer = vec![];
    stream.take(BYTES_MAX).read_to_end(&mut answer).map_err(unreachable)?;
    parse(page, &answer)
}

fn parse(page: &str, answer: &[u8]) -> Result<Snapshot, StatusError> {
    let no_page = || StatusError::NoPage(page.to_owned());
    let text = std::str::from_utf8(answer).map_err(|_| no_page())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(no_page)?;
    let status =
        head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).ok_or_else(no_page)?;
    match status {
        "200" if head.to_ascii_lowercase().contains("content-type: application/json") => {}
        "421" => return Err(StatusError::OtherName(page.to_owned())),
        _ => return Err(no_page()),
    }
    let is_ours = |value: &serde_json::Value| value.get("samples_total").is_some();
    let value: serde_json::Value = serde_json::from_str(body).map_err(|_| no_page())?;
    if !is_ours(&value) {
        return Err(no_page());
    }
    let other = |error: serde_json::Error| StatusError::OtherVersion {
        page: page.to_owned(),
        why: error.to_string(),
    };
    serde_json::from_value(value).map_err(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_runtime::{Line, Reader, Record, WorkerId};
    use paceline_watch::status::{Status as Watched, Surroundings};

    fn snapshot(is_over: bool) -> Snapshot {
        let mut status = Watched::default();
        let members = vec![WorkerId(0)];
        let mut read = |record| status.read(&Line { at: Duration::ZERO, record });
        read(Record::View { number: 1, members, reason: String::new() });
        if is_over {
            read(Record::Over);
        }
        status.snapshot(Duration::ZERO, &Surroundings::default())
    }

    /// Follows a page that answers as this table says, once a millisecond; returns how often it was asked.
    fn asked(answers: &[bool], gone_after: Duration) -> usize {
        let mut asked = 0;
        let fetch = || {
            asked += 1;
            match answers.get(asked - 1) {
                Some(true) => Ok(snapshot(asked == answers.len())),
                _ => Err(StatusError::Nobody("host:1".to_owned())),
            }
        };
        let status = Status { page: String::new(), watch: true, json: true };
        let period = Duration::from_millis(1);
        status.follow(fetch, |_| Ok(()), period, gone_after).expect("it ends well");
        asked
    }

    #[test]
    fn a_page_that_is_gone_is_given_up_after_a_while() {
        let since = Instant::now();

        let times = asked(&[true, false], Duration::from_millis(60));

        assert!(times > 3 && since.elapsed() >= Duration::from_millis(60), "{times}");
        assert_eq!(GONE_AFTER, Duration::from_secs(30));
    }

    #[test]
    fn a_page_that_answers_again_is_followed_to_the_end_of_the_run() {
        let answers = [true, false, false, true, false, true];

        assert_eq!(asked(&answers, Duration::from_secs(30)), answers.len());
    }

    #[test]
    fn what_is_no_page_is_said_to_be_none() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
        let error = |answer: &str| match parse("host:1", answer.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(_) => "a page".to_owned(),
        };
        let none = "host:1 answers, but it is not the page of a run";

        for answer in ["", "SSH-2.0-x\r\n", "HTTP/1.1 404 Not Found\r\n\r\n", &format!("{ok}[]")] {
            assert_eq!(error(answer), none, "{answer}");
        }
        assert!(error(&format!("{ok}{{\"samples_total\": 1}}")).contains("another version"));
        assert!(error("HTTP/1.1 421 Misdirected\r\n\r\n").contains("--page-host"));
    }
}
