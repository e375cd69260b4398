//! What each address of the page answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use paceline_runtime::WorkerId;
use paceline_watch::status::metrics;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::host::{is_ours, is_same_origin};
use crate::secret::random_text;
use crate::shared::{Ask, Shared};

/// What every answer can see.
#[derive(Clone)]
pub struct Seen {
    pub shared: Arc<Shared>,
    /// True when the program ends.
    pub ends: watch::Receiver<bool>,
    pub readers: Arc<AtomicUsize>,
}

const HTML: &str = include_str!("page.html");
/// How often a browser gets the state.
const PERIOD: Duration = Duration::from_millis(500);
/// So many browsers can watch at once; the others of the connections are for metrics and actions.
pub const READERS_MAX: usize = 32;
/// How long a run may take to answer; it is asked between two lines.
const ANSWER_MAX: Duration = Duration::from_secs(10);

pub fn routes(seen: Seen) -> Router {
    let checked = Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/status.json", get(status))
        .route("/metrics", get(text_metrics))
        .route("/save", post(save))
        .route("/stop", post(stop))
        .route("/workers/{worker}/put-out", post(put_out))
        .route("/workers/{worker}/ban", post(ban))
        .layer(from_fn_with_state(seen.clone(), only_ours));
    // Probes of a supervisor name the machine as they like, and learn nothing.
    checked
        .route("/healthz", get(|| async { plain(StatusCode::OK, "ok\n") }))
        .fallback(|| async { plain(StatusCode::NOT_FOUND, "there is nothing at this address\n") })
        .with_state(seen)
}

/// Refuses requests that are meant for another host.
async fn only_ours(State(seen): State<Seen>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    match host {
        Some(host) if is_ours(host, &seen.shared.facts.hosts) => next.run(request).await,
        _ => plain(
            StatusCode::MISDIRECTED_REQUEST,
            "this page does not answer to that name: use its address, or start it with --page-host NAME\n",
        ),
    }
}

async fn page() -> Response {
    let nonce = random_text();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = of_type("text/html; charset=utf-8", HTML.replace("{{nonce}}", &nonce));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

async fn status(State(seen): State<Seen>) -> Response {
    of_type("application/json", seen.shared.shown().json.clone())
}

async fn text_metrics(State(seen): State<Seen>) -> Response {
    of_type("text/plain; version=0.0.4; charset=utf-8", metrics(&seen.shared.shown().snapshot))
}

/// The whole state, again and again: a browser that connects again, or was too slow for some, needs nothing of before.
async fn events(State(seen): State<Seen>) -> Response {
    let Some(place) = Place::take(&seen.readers) else {
        let why = "too many browsers watch this run: close one of them\n";
        return plain(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    // A reader holds up only its own task, which waits here with one state at most.
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    tokio::spawn(async move {
        let _place = place;
        let (shared, mut ends) = (seen.shared, seen.ends);
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first = true;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = ends.wait_for(|ends| *ends) => {}
            }
            let has_ended = *ends.borrow();
            let mut text = Vec::new();
            if std::mem::take(&mut first) {
                text.extend_from_slice(b"retry: 1000\n");
            }
            if has_ended {
                text.extend_from_slice(b"event: end\n");
            }
            text.extend_from_slice(b"data: ");
            text.extend_from_slice(&shared.shown().json);
            text.extend_from_slice(b"\n\n");
            if sender.send(Ok(text.into())).await.is_err() || has_ended {
                return;
            }
        }
    });
    let body = Body::from_stream(ReceiverStream::new(receiver));
    of_type("text/event-stream", body)
}

/// One of the readers that are allowed, as long as it lives.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(readers: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(readers.clone());
        // Counted first: of two that come at once, both see both.
        let before = readers.fetch_add(1, Ordering::SeqCst);
        (before < READERS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn save(State(seen): State<Seen>, headers: HeaderMap) -> Response {
    act(&seen, &headers, Ask::Save, seen.shared.facts.actions.save).await
}

async fn stop(State(seen): State<Seen>, headers: HeaderMap) -> Response {
    act(&seen, &headers, Ask::Stop, seen.shared.facts.actions.stop).await
}

async fn put_out(
    State(seen): State<Seen>,
    Path(worker): Path<u32>,
    headers: HeaderMap,
) -> Response {
    let can = seen.shared.facts.actions.put_out;
    act(&seen, &headers, Ask::PutOut(WorkerId(worker)), can).await
}

async fn ban(State(seen): State<Seen>, Path(worker): Path<u32>, headers: HeaderMap) -> Response {
    act(&seen, &headers, Ask::Ban(WorkerId(worker)), seen.shared.facts.actions.ban).await
}

/// Asks the run, if whoever asks has the token; answers with one sentence.
async fn act(seen: &Seen, headers: &HeaderMap, ask: Ask, can: bool) -> Response {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    if text(header::ORIGIN).is_some_and(|origin| !is_same_origin(origin, host)) {
        return said(StatusCode::FORBIDDEN, "the request comes from another web site");
    }
    let given = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    let token = &seen.shared.facts.token;
    if !given.is_some_and(|given| token.is(given.as_bytes())) {
        let why = "this is not the token of the page; the program has printed it, or where it is";
        return said(StatusCode::UNAUTHORIZED, why);
    }
    if !can {
        let why = match ask {
            Ask::Save => "this run saves nothing: start it with --checkpoints DIR",
            _ => "this cannot be asked of a run of this kind",
        };
        return said(StatusCode::NOT_IMPLEMENTED, why);
    }
    let (sender, answer) = oneshot::channel();
    (seen.shared.facts.ask)(ask, Box::new(move |answer| drop(sender.send(answer))));
    match timeout(ANSWER_MAX, answer).await {
        Ok(Ok(Ok(sentence))) => said(StatusCode::OK, &sentence),
        Ok(Ok(Err(why))) => said(StatusCode::CONFLICT, &why),
        Ok(Err(_)) | Err(_) => {
            said(StatusCode::SERVICE_UNAVAILABLE, "the run does not answer at present; try again")
        }
    }
}

fn said(status: StatusCode, sentence: &str) -> Response {
    plain(status, &format!("{sentence}\n"))
}

fn plain(status: StatusCode, text: &str) -> Response {
    let mut response = of_type("text/plain; charset=utf-8", text.to_owned());
    *response.status_mut() = status;
    response
}

/// An answer that no other site may use, and that is not kept.
fn of_type(kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
