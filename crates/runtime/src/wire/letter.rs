//! Letters, which are one-way messages outside any exchange; the state they carry; and values that peers read.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use paceline_learn::Vector;
use serde::{Deserialize, Serialize};

use super::{
    AnyOptimizerState, Frame, FrameError, Framed, HEADER_BYTES, Memory, ReceivedFrame, Sum, Tail,
};
use crate::agreed::Agreed;
use crate::codec::Payload;
use crate::spans::Spans;

/// A one-way message from one worker to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Letter {
    /// To a newcomer, when a planned view is boarded.
    SharedState { view: u64, state: Arc<SharedState> },
    /// To a member that missed this result, when the members settle after a loss.
    Result { view: u64, sum: Arc<Sum> },
    /// From the server to a worker that called it: the center.
    Center {
        #[serde(skip)]
        params: Arc<Vector>,
        reign: u64,
        version: u64,
        done: Arc<Spans>,
        /// The intervals of `done`, where a simulator leaves them out: they are read only when a server is lost, and thousands
        /// of answers may be on their way.
        #[serde(skip)]
        left_out: usize,
    },
    /// To the server: a gradient, and the samples that are in it.
    Gradient {
        #[serde(skip, default = "nothing")]
        payload: Arc<Payload>,
        tail: Tail,
        spans: Spans,
    },
    /// To the server: this worker will ask for no more samples.
    Idle,
    /// To the server: a newcomer asks for the center.
    Newcomer,
    /// To the next server, from one that leaves.
    Handover { center: Published },
    /// From a strategy to the same strategy of another worker; the runtime does not look inside.
    Message { to: Mailbox, message: Message },
    /// To the member that evaluates: the sender's replica, as it was at `at`, after `samples` samples of the job. The mean of those
    /// of `parts` members is evaluated. No task reads it: clusters whose members share no memory send and take it themselves.
    Part {
        samples: u64,
        parts: usize,
        at: Duration,
        #[serde(skip)]
        replica: Arc<Vector>,
    },
}

/// Which task of a worker receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mailbox {
    /// [`Strategy::round`](crate::Strategy::round), by `worker.received()`.
    Worker,
    /// [`Strategy::serve`](crate::Strategy::serve), by `server.next()`.
    Server,
}

/// What a strategy sends: any plain data, and any vectors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `Null` if the vectors say it all.
    pub data: serde_json::Value,
    #[serde(skip)]
    pub vectors: Vec<Arc<Vector>>,
}

impl Message {
    /// A message of one vector and nothing else.
    pub fn of(vector: Arc<Vector>) -> Message {
        Message { data: serde_json::Value::Null, vectors: vec![vector] }
    }

    fn bytes(&self) -> u64 {
        let data = match &self.data {
            serde_json::Value::Null => 0,
            data => serde_json::to_vec(data).map_or(0, |text| text.len() as u64),
        };
        data + self.vectors.iter().map(|vector| 4 * vector.len() as u64).sum::<u64>()
    }
}

/// Everything that a newcomer adopts: what all members agree on, between rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedState {
    pub round: u64,
    pub version: u64,
    #[serde(skip)]
    pub params: Arc<Vector>,
    pub optimizer: AnyOptimizerState,
    pub strategy: Memory,
    pub agreed: Agreed,
}

impl SharedState {
    /// Size on the wire, without a header. Names of vectors are not counted: both sides know them.
    fn bytes(&self) -> u64 {
        #[derive(Serialize)]
        struct Head<'a> {
            strategy: &'a serde_json::Value,
            agreed: &'a Agreed,
        }
        let head = Head { strategy: &self.strategy.json, agreed: &self.agreed };
        let head = serde_json::to_vec(&head).map_or(0, |text| text.len() as u64);
        let vectors = self.strategy.vectors.values().map(|vector| 4 * vector.len() as u64);
        4 * self.params.len() as u64 + self.optimizer.bytes() + head + vectors.sum::<u64>()
    }
}

/// A value that peers may read without asking the worker that published it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    #[serde(skip)]
    pub params: Arc<Vector>,
    pub optimizer: AnyOptimizerState,
    /// The number of the view that made the center's server the server. Copies are ordered by reign, then version:
    /// an update of a server that was lost is older than any of its successor's.
    #[serde(default)]
    pub reign: u64,
    /// How many updates the center had seen; only meaningful for strategies with a center.
    pub version: u64,
    pub done: Arc<Spans>,
}

impl Published {
    /// Size on the wire, without a header.
    pub fn bytes(&self) -> u64 {
        4 * self.params.len() as u64 + self.optimizer.bytes() + bytes_of_spans(&self.done)
    }

    /// What crosses the wire when this much of it is read.
    pub fn extract(&self, extent: Extent) -> Published {
        match extent {
            Extent::Whole => self.clone(),
            Extent::Params => {
                // Gossip reads in every step: what is left out is not made anew each time.
                static LEFT_OUT: LazyLock<(AnyOptimizerState, Arc<Spans>)> =
                    LazyLock::new(Default::default);
                let (optimizer, done) = LEFT_OUT.clone();
                let (params, reign, version) = (self.params.clone(), self.reign, self.version);
                Published { params, optimizer, reign, version, done }
            }
        }
    }
}

/// How much of a published value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// A peer that averages needs no more.
    Params,
    /// A newcomer, or a new server, needs the optimizer's state, too.
    Whole,
}

/// Which of a worker's published values is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shelf {
    /// A worker's replica.
    Replica,
    /// The center as a worker saw it last.
    Copy,
    /// The center, on the shelf of the member that hosts it.
    Center,
}

impl Letter {
    /// By how many numbers a server updates its center when it handles this call; `None` if it is no call of a server.
    pub fn numbers_for_server(&self) -> Option<usize> {
        match self {
            Letter::Gradient { payload, .. } => Some(payload.len()),
            Letter::Message { to: Mailbox::Server, message } => {
                Some(message.vectors.iter().map(|vector| vector.len()).sum())
            }
            Letter::Idle | Letter::Newcomer => Some(0),
            Letter::SharedState { .. }
            | Letter::Result { .. }
            | Letter::Center { .. }
            | Letter::Handover { .. }
            | Letter::Part { .. }
            | Letter::Message { to: Mailbox::Worker, .. } => None,
        }
    }

    /// Whether the server's task of the receiver reads it, and not the worker's.
    pub fn is_for_server(&self) -> bool {
        match self {
            Letter::Gradient { .. } | Letter::Idle | Letter::Newcomer | Letter::Handover { .. } => {
                true
            }
            Letter::Message { to, .. } => *to == Mailbox::Server,
            Letter::SharedState { .. }
            | Letter::Result { .. }
            | Letter::Center { .. }
            | Letter::Part { .. } => false,
        }
    }

    /// Size on the wire, header included.
    pub fn bytes(&self) -> u64 {
        HEADER_BYTES
            + match self {
                Letter::SharedState { state, .. } => state.bytes(),
                Letter::Result { sum, .. } => sum.bytes(),
                Letter::Center { params, done, left_out, .. } => {
                    4 * params.len() as u64 + bytes_of_spans(done) + 16 * *left_out as u64
                }
                Letter::Gradient { payload, tail, spans } => {
                    payload.bytes() + tail.bytes() + bytes_of_spans(spans)
                }
                Letter::Idle | Letter::Newcomer => 0,
                Letter::Handover { center } => center.bytes(),
                Letter::Message { message, .. } => message.bytes(),
                Letter::Part { replica, .. } => 4 * replica.len() as u64,
            }
    }
}

fn nothing() -> Arc<Payload> {
    Arc::new(Payload::dense(Vector::new()))
}

fn bytes_of_spans(spans: &Spans) -> u64 {
    16 * spans.intervals().len() as u64
}

/// A payload is encoded already and goes as it is; it is no frame of floats.
impl Framed for Letter {
    fn frames(&self) -> Vec<Frame<'_>> {
        match self {
            Letter::SharedState { state, .. } => state.frames(),
            Letter::Result { sum, .. } => sum.frames(),
            Letter::Center { params, .. } | Letter::Part { replica: params, .. } => {
                vec![Frame::Floats(params)]
            }
            Letter::Gradient { .. } | Letter::Idle | Letter::Newcomer => vec![],
            Letter::Handover { center } => center.frames(),
            Letter::Message { message, .. } => {
                message.vectors.iter().map(|vector| Frame::Floats(vector)).collect()
            }
        }
    }

    fn fill(&mut self, frames: Vec<ReceivedFrame>) -> Result<(), FrameError> {
        match self {
            Letter::SharedState { state, .. } => Arc::make_mut(state).fill(frames),
            Letter::Result { sum, .. } => Arc::make_mut(sum).fill(frames),
            Letter::Center { params, .. } | Letter::Part { replica: params, .. } => {
                let [vector] = exactly(frames)?;
                *params = Arc::new(vector);
                Ok(())
            }
            Letter::Gradient { .. } | Letter::Idle | Letter::Newcomer => {
                exactly::<0>(frames).map(drop)
            }
            Letter::Handover { center } => center.fill(frames),
            Letter::Message { message, .. } => {
                let vectors = ReceivedFrame::vectors(frames)?;
                message.vectors = vectors.into_iter().map(Arc::new).collect();
                Ok(())
            }
        }
    }
}

impl Framed for SharedState {
    fn frames(&self) -> Vec<Frame<'_>> {
        let memory = self.strategy.vectors.values().map(|vector| Frame::Floats(vector));
        let params = std::iter::once(Frame::Floats(&self.params));
        params.chain(memory).chain(self.optimizer.frames()).collect()
    }

    fn fill(&mut self, mut frames: Vec<ReceivedFrame>) -> Result<(), FrameError> {
        let head = 1 + self.strategy.vectors.len();
        let received = frames.len();
        if received < head {
            return Err(FrameError { expected: head, received });
        }
        self.optimizer.fill(frames.split_off(head))?;
        let mut frames = ReceivedFrame::vectors(frames)?.into_iter().map(Arc::new);
        self.params = frames.next().unwrap_or_default();
        self.strategy.vectors.values_mut().zip(frames).for_each(|(place, frame)| *place = frame);
        Ok(())
    }
}

impl Framed for Published {
    fn frames(&self) -> Vec<Frame<'_>> {
        let params = std::iter::once(Frame::Floats(&self.params));
        params.chain(self.optimizer.frames()).collect()
    }

    fn fill(&mut self, frames: Vec<ReceivedFrame>) -> Result<(), FrameError> {
        let mut frames = frames.into_iter();
        let params = frames.next().and_then(ReceivedFrame::vector);
        self.params = Arc::new(params.ok_or(FrameError { expected: 1, received: 0 })?);
        self.optimizer.fill(frames.collect())
    }
}

fn exactly<const N: usize>(frames: Vec<ReceivedFrame>) -> Result<[Vector; N], FrameError> {
    let frames = ReceivedFrame::vectors(frames)?;
    let received = frames.len();
    frames.try_into().map_err(|_| FrameError { expected: N, received })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::wire::Extra;
    use paceline_learn::{OptimizerState, Rescale, Rescaler};

    fn letters() -> Vec<Letter> {
        let vector = |x: f32| Arc::new(Vector::from([x, x + 1.0]));
        let state = OptimizerState { slots: vec![[7.0].into(), [8.0].into()], steps: 3 };
        let optimizer = AnyOptimizerState::Ours(Arc::new(state));
        let theirs = AnyOptimizerState::Theirs(Arc::new(vec![1, 255]));
        let published = Published {
            params: vector(1.0),
            optimizer: optimizer.clone(),
            reign: 1,
            version: 4,
            done: Arc::new(Spans::one(0, 5)),
        };
        let state = SharedState {
            round: 2,
            version: 3,
            params: vector(2.0),
            optimizer,
            strategy: Memory {
                json: serde_json::json!({ "period": 4 }),
                vectors: [("outer.momentum".to_owned(), vector(3.0))].into(),
            },
            agreed: Agreed {
                ledger: Arc::new(Ledger::new(9)),
                rescaler: Rescaler::new(Rescale::None, 8.0),
                stopped: false,
                view: Arc::default(),
                exchanges: 3,
                digest: 4,
            },
        };
        let tail = Tail { extra: Extra::Value(0.5), ..Tail::default() };
        let message = Message { data: serde_json::json!("mine"), vectors: vec![vector(5.0)] };
        vec![
            Letter::SharedState { view: 6, state: Arc::new(state) },
            Letter::Center {
                params: vector(1.5),
                reign: 1,
                version: 1,
                done: Arc::default(),
                left_out: 0,
            },
            Letter::Result {
                view: 6,
                sum: Arc::new(Sum::new(7, Arc::default(), [2.5].into(), vec![tail])),
            },
            Letter::Idle,
            Letter::Newcomer,
            Letter::Handover { center: published.clone() },
            Letter::Handover { center: Published { optimizer: theirs, ..published } },
            Letter::Message { to: Mailbox::Server, message },
            Letter::Part {
                samples: 9,
                parts: 3,
                at: Duration::from_millis(40),
                replica: vector(6.0),
            },
        ]
    }

    #[test]
    fn a_letter_arrives_as_head_and_frames() {
        for letter in letters() {
            let head = serde_json::to_string(&letter).expect("heads are plain data");
            let frames = letter.frames().into_iter().map(ReceivedFrame::from).collect();

            let mut received: Letter = serde_json::from_str(&head).expect("it was just written");
            received.fill(frames).expect("the frames are those of the letter");

            assert_eq!(received, letter);
            assert!(!head.contains("7.0") && !head.contains("2.0"), "no vector in {head}");
            assert!(!head.contains("255"), "no bytes of a host in {head}");
        }
    }

    /// A weight that is the number of samples takes no byte, and older heads, which have none, can be read.
    #[test]
    fn a_tail_has_a_weight_only_if_it_needs_one() {
        let plain = Tail { samples: 3, extra: Extra::Value(0.5), ..Tail::default() };
        let weighted = Tail { weight: Some(0.1), ..plain.clone() };
        let head = |tail: &Tail| serde_json::to_string(tail).expect("tails are plain data");

        assert!(!head(&plain).contains("weight"));
        for tail in [&plain, &weighted] {
            assert_eq!(&serde_json::from_str::<Tail>(&head(tail)).expect("just written"), tail);
        }
        assert_eq!((plain.bytes(), weighted.bytes()), (65, 73));
        let sum = |tail: &Tail| Sum::new(7, Arc::default(), [2.5].into(), vec![tail.clone()]);
        assert_eq!(sum(&plain).bytes() + 8, sum(&weighted).bytes());
        assert_eq!(
            (sum(&plain).gradient.weight, sum(&weighted).gradient.weight),
            (None, Some(0.1))
        );
        let view = |tail: &Tail| {
            let members = vec![crate::ids::WorkerId(0)];
            let view = Arc::new(crate::view::View { members, ..Default::default() });
            Sum::new(7, view, [2.5].into(), vec![tail.clone()]).digest()
        };
        assert_ne!(view(&plain), view(&weighted), "members agree on weights");
    }

    /// Numbers of a peer are its word, but they must not end this process.
    #[test]
    fn a_result_with_more_samples_than_can_be_counted_is_read() {
        let tail = Tail { samples: u64::MAX, ..Tail::default() };

        let sum = Sum::new(7, Arc::default(), [2.5].into(), vec![tail.clone(), tail]);

        assert_eq!(sum.gradient.samples, u64::MAX);
    }

    #[test]
    fn a_wrong_number_of_frames_is_refused() {
        let floats = || ReceivedFrame::Floats([1.0].into());
        for mut letter in letters() {
            let (too_few, too_many) = match letter {
                // The number of these is not fixed by the head.
                Letter::Message { .. } => continue,
                Letter::Idle | Letter::Newcomer => (None, Some(vec![floats()])),
                Letter::Center { .. } | Letter::Part { .. } => {
                    (Some(vec![]), Some(vec![floats(), floats()]))
                }
                _ => (Some(vec![]), None),
            };
            for frames in [too_few, too_many].into_iter().flatten() {
                assert!(letter.fill(frames).is_err(), "{letter:?}");
            }
        }
    }

    #[test]
    fn a_frame_of_the_wrong_kind_is_refused() {
        for mut letter in letters() {
            let right: Vec<ReceivedFrame> =
                letter.frames().into_iter().map(ReceivedFrame::from).collect();
            for at in 0..right.len() {
                let mut frames = right.clone();
                frames[at] = match &right[at] {
                    ReceivedFrame::Floats(_) => ReceivedFrame::Bytes(vec![1]),
                    ReceivedFrame::Bytes(_) => ReceivedFrame::Floats([1.0].into()),
                };
                assert!(letter.fill(frames).is_err(), "frame {at} of {letter:?}");
            }
        }
    }
}
