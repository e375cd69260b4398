//! The live page of a run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};

use clap::Args;
use paceline_job::checkpoint::{Saving, newest};
use paceline_job::processes::write_private;
use paceline_job::run::{Answer, Request, Requests};
use paceline_page::{Ask, Page, PageConfig, PageReader, Saved, Secret};
use paceline_watch::status::Actions;

use crate::error::{CliResult, CommandError, UsageError};
use crate::output::say;
use crate::stop::Stop;

#[derive(Args)]
#[command(next_help_heading = "Live page")]
pub struct PageFlags {
    /// Show the run live in a browser, at this address and port; a port alone is on the loopback device, port 0 is any free one
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    page: Option<SocketAddr>,
    /// Let the page answer to this name of the machine, too; may be repeated
    #[arg(long, value_name = "NAME", requires = "page")]
    page_host: Vec<String>,
}

/// What the page needs to know of the run.
pub struct Watched<'a> {
    /// Where the workers run.
    pub place: &'a str,
    /// Whether single workers can be put out.
    pub can_lose_members: bool,
    pub saving: Option<&'a Saving>,
    pub stop: &'a Stop,
    /// With fewer members, training waits for others.
    pub members_min: u32,
    /// Where the token is kept, so that it stays the same; `None`: it is printed.
    pub token_file: Option<PathBuf>,
}

/// A page that is up, if one is wanted, and what its readers ask of the run.
#[derive(Default)]
pub struct OpenPage {
    page: Option<Page>,
    pub requests: Option<Requests>,
}

/// More requests than this are refused until the run has answered some.
const REQUESTS_MAX: usize = 16;

impl PageFlags {
    /// Makes sure that the page's port is free, before anything is said or begun.
    pub fn check(&self) -> CliResult {
        let Some(address) = self.page else { return Ok(()) };
        let bound = std::net::TcpListener::bind(address);
        bound.map(drop).map_err(|source| CommandError::Page { address, source }.into())
    }

    /// Starts the page, and says where it is.
    pub fn open(&self, watched: &Watched<'_>) -> CliResult<OpenPage> {
        let Some(listen) = self.page else { return Ok(OpenPage::default()) };
        let token = match &watched.token_file {
            Some(path) => kept_token(path)?,
            None => Secret::random(),
        };
        let (sender, requests) = sync_channel(REQUESTS_MAX);
        let can_lose = watched.can_lose_members;
        let (folder, stop) = (folder(watched.saving), watched.stop.requested.clone());
        let page = Page::start(PageConfig {
            listen,
            hosts: self.page_host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            place: watched.place.to_owned(),
            actions: Actions {
                save: watched.saving.is_some(),
                stop: true,
                put_out: can_lose,
                ban: can_lose,
            },
            token: token.clone(),
            ask: Box::new(asked(watched, sender)),
            is_stopping: Box::new(move || stop.load(Ordering::Relaxed)),
            members_min: watched.members_min as usize,
            newest_checkpoint: Box::new(move || Saved::found(newest(folder.as_deref()?)?)),
        });
        let page = page.map_err(|source| CommandError::Page { address: listen, source })?;
        say(&announcement(page.address(), &token, watched.token_file.as_deref()));
        Ok(OpenPage { page: Some(page), requests: Some(requests) })
    }
}

impl OpenPage {
    /// Reads the journal for the page.
    pub fn reader(&self) -> Option<PageReader> {
        self.page.as_ref().map(Page::reader)
    }
}

/// Does what the page asks, or passes it on to the run.
fn asked(
    watched: &Watched<'_>,
    requests: SyncSender<(Request, Answer)>,
) -> impl Fn(Ask, Answer) + Send + Sync + use<> {
    let stop = watched.stop.requested.clone();
    move |ask, answer| {
        // A request that finds no room is dropped with its answer.
        let pass_on = |request, answer| drop(requests.try_send((request, answer)));
        match ask {
            Ask::Save => pass_on(Request::Save, answer),
            Ask::Stop => {
                if !stop.swap(true, Ordering::SeqCst) {
                    say("stopped from the page: finishing the round");
                }
                answer(Ok("the run ends after this round".to_owned()));
            }
            Ask::PutOut(who) => pass_on(Request::PutOut(who), answer),
            Ask::Ban(who) => pass_on(Request::Ban(who), answer),
        }
    }
}

fn folder(saving: Option<&Saving>) -> Option<PathBuf> {
    saving.map(|saving| PathBuf::from(&saving.checkpoints.folder))
}

/// The token of an earlier coordinator of the same job, so that pages that are open stay of use; or a new one.
fn kept_token(path: &Path) -> Result<Secret, CommandError> {
    let kept = std::fs::read_to_string(path).ok().and_then(|text| Secret::parse(&text).ok());
    if let Some(token) = kept {
        return Ok(token);
    }
    let token = Secret::random();
    write_private(path, &format!("{}\n", token.text()))
        .map_err(|source| CommandError::PageToken { path: path.to_owned(), source })?;
    Ok(token)
}

fn announcement(address: SocketAddr, token: &Secret, file: Option<&Path>) -> String {
    let token = match file {
        Some(path) => format!("its token, to save and to stop, is in {}", path.display()),
        None => format!("its token, to save and to stop: {}", token.text()),
    };
    let open = match address.ip().is_loopback() {
        true => "",
        false => "\nthe page is not encrypted: whoever reaches this port can watch the run",
    };
    format!("Page: http://{address}/ ({token}){open}")
}

/// Reads an address with a port, or a port alone.
fn listen(text: &str) -> Result<SocketAddr, UsageError> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    let local = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|_| text.parse()).map_err(|_| UsageError::PageAddress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_the_loopback_device() {
        let table = [
            ("8080", "127.0.0.1:8080"),
            (":0", "127.0.0.1:0"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:8080", "[::1]:8080"),
        ];
        for (text, expected) in table {
            assert_eq!(listen(text).map(|it| it.to_string()).ok().as_deref(), Some(expected));
        }
        for text in ["", "host", "127.0.0.1", "65536", "localhost:80"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
