//! Every call of MPI, behind functions that check ranks, counts and lengths.
//!
//! The safe interface of the bindings ties a request to a stack frame that outlives it. Here requests are under way while the
//! thread serves others, so each [`Pending`] owns the memory that MPI reads and writes, and leaks it if it is dropped before
//! MPI has finished: MPI never sees memory that was freed or changed.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::sync::Arc;

use mpi::environment::Universe;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use paceline_learn::Vector;
use paceline_runtime::codec::{Encoded, Payload};

use crate::error::MpiError;

/// MPI, initialised by this thread, which alone may use it.
pub struct Mpi {
    // Freed before MPI is finalised, which the last field does.
    messages: SimpleCommunicator,
    collectives: SimpleCommunicator,
    pub rank: usize,
    pub size: usize,
    /// How many ranks run on this machine.
    pub on_machine: usize,
    _universe: Universe,
}

/// The most numbers that one call may count.
pub const COUNT_MAX: usize = c_int::MAX as usize;

/// What was sent, and what arrives.
type Both<T> = (Vec<T>, Vec<T>);

/// An operation under way, with all memory that it uses.
pub struct Pending<K> {
    request: ffi::MPI_Request,
    kept: ManuallyDrop<K>,
    /// Counts and displacements, which MPI may read until the operation is over.
    _counts: ManuallyDrop<Vec<Vec<c_int>>>,
    is_done: bool,
}

/// A message that waits to be received.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    pub from: usize,
    pub tag: i32,
    pub bytes: usize,
}

/// What is sent to a rank: bytes that nobody changes.
pub trait Bytes {
    fn bytes(&self) -> &[u8];
}

/// A member's vector in an exchange. Members that add nothing have none.
pub type Mine = Option<Arc<Payload>>;

/// The numbers of a dense payload.
pub fn numbers(payload: &Payload) -> &[f32] {
    match &payload.learned {
        Encoded::Dense(values) => values,
        _ => &[],
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; 4096];
    let mut length = 0;
    // SAFETY: the buffer is longer than MPI_MAX_ERROR_STRING of every implementation (256 to 1024 bytes).
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) } == 0;
    let text = match usize::try_from(length) {
        Ok(length) if known && length <= text.len() => String::from_utf8_lossy(&text[..length]),
        _ => format!("error {code}").into(),
    };
    Err(MpiError::Call { call, text: text.into_owned() })
}

fn count(numbers: usize) -> Result<c_int, MpiError> {
    c_int::try_from(numbers).map_err(|_| MpiError::TooLong { numbers, most: COUNT_MAX })
}

/// Counts and displacements of consecutive or scattered ranges.
fn counted(ranges: &[Range<usize>]) -> Result<[Vec<c_int>; 2], MpiError> {
    let counts = ranges.iter().map(|range| count(range.len())).collect::<Result<_, _>>()?;
    let displacements = ranges.iter().map(|range| count(range.start)).collect::<Result<_, _>>()?;
    Ok([counts, displacements])
}

impl Mpi {
    pub fn start() -> Result<Mpi, MpiError> {
        let wanted = mpi::Threading::Serialized;
        let (universe, granted) = mpi::initialize_with_threading(wanted).ok_or(MpiError::Used)?;
        if granted < mpi::Threading::Funneled {
            return Err(MpiError::Threads);
        }
        let world = universe.world();
        let (messages, collectives) = (world.duplicate(), world.duplicate());
        for communicator in [&messages, &collectives] {
            // SAFETY: both handles are valid between initialisation and finalisation.
            let code = unsafe {
                ffi::MPI_Comm_set_errhandler(communicator.as_raw(), ffi::RSMPI_ERRORS_RETURN)
            };
            check("MPI_Comm_set_errhandler", code)?;
        }
        let on_machine = world.split_shared(0).size().max(1) as usize;
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        Ok(Mpi { messages, collectives, rank, size, on_machine, _universe: universe })
    }

    /// Ends all ranks at once.
    pub fn abort(&self, code: i32) -> ! {
        self.messages.abort(code)
    }

    fn peer(&self, rank: usize) -> c_int {
        assert!(rank < self.size, "ranks are below the number of ranks");
        rank as c_int
    }

    /// Starts to send; it is over when the other rank receives it. Messages to one rank with one tag arrive in order.
    pub fn send<K: Bytes>(
        &self,
        to: usize,
        tag: i32,
        kept: Box<K>,
    ) -> Result<Pending<Box<K>>, MpiError> {
        let (to, bytes) = (self.peer(to), kept.bytes());
        let (from, length) = (bytes.as_ptr().cast::<c_void>(), count(bytes.len())?);
        let comm = self.messages.as_raw();
        start(kept, vec![], |_, request| {
            // SAFETY: `kept` owns the bytes, in a place that does not move, and nobody can change them.
            let code = unsafe {
                ffi::MPI_Issend(from, length, ffi::RSMPI_UINT8_T, to, tag, comm, request)
            };
            check("MPI_Issend", code)
        })
    }

    /// The next message that has arrived, if any.
    pub fn probe(&self) -> Result<Option<Envelope>, MpiError> {
        let (mut flag, mut bytes) = (0, 0);
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        let comm = self.messages.as_raw();
        // SAFETY: the status is written before it is read if the flag is set.
        let code = unsafe {
            ffi::MPI_Iprobe(
                ffi::RSMPI_ANY_SOURCE,
                ffi::RSMPI_ANY_TAG,
                comm,
                &mut flag,
                status.as_mut_ptr(),
            )
        };
        check("MPI_Iprobe", code)?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: a set flag means that the status is complete.
        let status = unsafe { status.assume_init() };
        // SAFETY: as above.
        let code = unsafe { ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes) };
        check("MPI_Get_count", code)?;
        let call = "MPI_Iprobe";
        let wrong = |_| MpiError::Call { call, text: "a message without a length".to_owned() };
        let from = usize::try_from(status.MPI_SOURCE).map_err(wrong)?;
        let bytes = usize::try_from(bytes).map_err(wrong)?;
        Ok(Some(Envelope { from, tag: status.MPI_TAG, bytes }))
    }

    /// Starts to receive the message that [`probe`](Self::probe) has found.
    pub fn receive(&self, envelope: Envelope) -> Result<Pending<Vec<u8>>, MpiError> {
        let Envelope { from, tag, bytes } = envelope;
        let (from, length) = (self.peer(from), count(bytes)?);
        let comm = self.messages.as_raw();
        start(vec![0u8; bytes], vec![], |buffer, request| {
            let into = buffer.as_mut_ptr().cast();
            // SAFETY: the buffer has `length` bytes and belongs to the request until it is done; a longer message is an error.
            let code = unsafe {
                ffi::MPI_Irecv(into, length, ffi::RSMPI_UINT8_T, from, tag, comm, request)
            };
            check("MPI_Irecv", code)
        })
    }

    /// Starts an exchange of blocks of equal length: every rank gets those of all, in rank order.
    pub fn gather(&self, block: Vec<u8>) -> Result<Pending<Both<u8>>, MpiError> {
        let length = count(block.len())?;
        count(block.len() * self.size)?;
        let all = vec![0u8; block.len() * self.size];
        let comm = self.collectives.as_raw();
        start((block, all), vec![], |(block, all), request| {
            let kind = ffi_bytes();
            let (from, into) = (block.as_ptr().cast(), all.as_mut_ptr().cast());
            // SAFETY: `block` has `length` bytes, `all` as many per rank; both belong to the request.
            let code = unsafe {
                ffi::MPI_Iallgather(from, length, kind, into, length, kind, comm, request)
            };
            check("MPI_Iallgather", code)
        })
    }

    /// Starts to send range j of this rank's numbers to rank j, for all j, and to receive from rank j into range j of `into`.
    pub fn scatter(
        &self,
        mine: Mine,
        send: &[Range<usize>],
        mut into: Vector,
        receive: &[Range<usize>],
    ) -> Result<Pending<(Mine, Vector)>, MpiError> {
        let from = mine.as_deref().map_or(&[][..], numbers);
        self.fit(send, from.len());
        self.fit(receive, into.len());
        let (from, to) = (from.as_ptr().cast(), into.as_mut_ptr().cast());
        let [send_counts, send_places] = counted(send)?;
        let [counts, places] = counted(receive)?;
        let comm = self.collectives.as_raw();
        let arrays = vec![send_counts, send_places, counts, places];
        let arrays_of: [*const c_int; 4] = std::array::from_fn(|i| arrays[i].as_ptr());
        start((mine, into), arrays, |_, request| {
            let kind = ffi_floats();
            let [send_counts, send_places, counts, places] = arrays_of;
            // SAFETY: all ranges lie within their vectors; vectors and arrays lie on the heap and belong to the request.
            let code = unsafe {
                ffi::MPI_Ialltoallv(
                    from,
                    send_counts,
                    send_places,
                    kind,
                    to,
                    counts,
                    places,
                    kind,
                    comm,
                    request,
                )
            };
            check("MPI_Ialltoallv", code)
        })
    }

    /// Starts to give `mine[range]` to all ranks, and to receive what rank j gives into range j of `into`.
    pub fn spread(
        &self,
        mine: Vector,
        range: Range<usize>,
        mut into: Vector,
        receive: &[Range<usize>],
    ) -> Result<Pending<(Vector, Vector)>, MpiError> {
        self.fit(receive, into.len());
        let length = count(range.len())?;
        let (from, to) = (mine[range].as_ptr().cast(), into.as_mut_ptr().cast());
        let [counts, places] = counted(receive)?;
        let comm = self.collectives.as_raw();
        let (counts_at, places_at) = (counts.as_ptr(), places.as_ptr());
        start((mine, into), vec![counts, places], |_, request| {
            let kind = ffi_floats();
            // SAFETY: as in `scatter`.
            let code = unsafe {
                ffi::MPI_Iallgatherv(
                    from, length, kind, to, counts_at, places_at, kind, comm, request,
                )
            };
            check("MPI_Iallgatherv", code)
        })
    }

    /// Starts to give words to all ranks: rank j's arrive in range j.
    pub fn spread_words(
        &self,
        mine: Vec<u32>,
        receive: &[Range<usize>],
    ) -> Result<Pending<Both<u32>>, MpiError> {
        let mut into = vec![0u32; receive.iter().map(|range| range.end).max().unwrap_or(0)];
        self.fit(receive, into.len());
        let length = count(mine.len())?;
        let (from, to) = (mine.as_ptr().cast(), into.as_mut_ptr().cast());
        let [counts, places] = counted(receive)?;
        let comm = self.collectives.as_raw();
        let (counts_at, places_at) = (counts.as_ptr(), places.as_ptr());
        start((mine, into), vec![counts, places], |_, request| {
            // SAFETY: as in `scatter`; reading a static of the bindings.
            let code = unsafe {
                let kind = ffi::RSMPI_UINT32_T;
                ffi::MPI_Iallgatherv(
                    from, length, kind, to, counts_at, places_at, kind, comm, request,
                )
            };
            check("MPI_Iallgatherv", code)
        })
    }

    /// Starts MPI's own sum over all ranks: in an order that MPI chooses.
    pub fn reduce(
        &self,
        mine: Arc<Payload>,
        mut into: Vector,
    ) -> Result<Pending<(Mine, Vector)>, MpiError> {
        let from = numbers(&mine);
        assert_eq!(from.len(), into.len(), "a sum is as long as its parts");
        let length = count(from.len())?;
        let (from, to) = (from.as_ptr().cast(), into.as_mut_ptr().cast());
        let comm = self.collectives.as_raw();
        start((Some(mine), into), vec![], |_, request| {
            let kind = ffi_floats();
            // SAFETY: both vectors have `length` numbers and belong to the request.
            let code = unsafe {
                ffi::MPI_Iallreduce(from, to, length, kind, ffi::RSMPI_SUM, comm, request)
            };
            check("MPI_Iallreduce", code)
        })
    }

    /// MPI's own sum, which waits for all ranks.
    pub fn all_reduce(&self, from: &[f32], into: &mut [f32]) -> Result<(), MpiError> {
        assert_eq!(from.len(), into.len(), "a sum is as long as its parts");
        let (length, comm) = (count(from.len())?, self.collectives.as_raw());
        let (from, to, kind) = (from.as_ptr().cast(), into.as_mut_ptr().cast(), ffi_floats());
        // SAFETY: both vectors have `length` numbers, and the call returns when MPI is done with them.
        let code = unsafe { ffi::MPI_Allreduce(from, to, length, kind, ffi::RSMPI_SUM, comm) };
        check("MPI_Allreduce", code)
    }

    /// Starts a barrier of all ranks.
    pub fn barrier(&self) -> Result<Pending<()>, MpiError> {
        let comm = self.collectives.as_raw();
        start((), vec![], |(), request| {
            // SAFETY: the handle is valid.
            check("MPI_Ibarrier", unsafe { ffi::MPI_Ibarrier(comm, request) })
        })
    }

    /// Checks that there is a range per rank, and that all lie within a vector.
    fn fit(&self, ranges: &[Range<usize>], length: usize) {
        assert_eq!(ranges.len(), self.size, "there is a range for every rank");
        let is_inside = |range: &Range<usize>| range.start <= range.end && range.end <= length;
        assert!(ranges.iter().all(is_inside), "ranges lie within their vector");
    }
}

fn ffi_floats() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the bindings, written in C.
    unsafe { ffi::RSMPI_FLOAT }
}

fn ffi_bytes() -> ffi::MPI_Datatype {
    // SAFETY: as above.
    unsafe { ffi::RSMPI_UINT8_T }
}

fn start<K>(
    mut kept: K,
    counts: Vec<Vec<c_int>>,
    call: impl FnOnce(&mut K, &mut ffi::MPI_Request) -> Result<(), MpiError>,
) -> Result<Pending<K>, MpiError> {
    // SAFETY: a constant of the bindings.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    if let Err(error) = call(&mut kept, &mut request) {
        // Whether MPI still uses the memory is not known.
        std::mem::forget((kept, counts));
        return Err(error);
    }
    let (kept, _counts) = (ManuallyDrop::new(kept), ManuallyDrop::new(counts));
    Ok(Pending { request, kept, _counts, is_done: false })
}

impl<K> Pending<K> {
    /// Lets MPI go on, and says whether this operation is over.
    pub fn test(&mut self) -> Result<bool, MpiError> {
        if !self.is_done {
            let mut flag = 0;
            // SAFETY: the request is one that was started and is not over.
            let code =
                unsafe { ffi::MPI_Test(&mut self.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
            check("MPI_Test", code)?;
            self.is_done = flag != 0;
        }
        Ok(self.is_done)
    }

    /// The memory of an operation that is over.
    pub fn take(mut self) -> K {
        assert!(self.is_done, "memory is taken from operations that are over");
        // SAFETY: `drop` does not touch it: it is forgotten below.
        let kept = unsafe { ManuallyDrop::take(&mut self.kept) };
        // SAFETY: as above.
        drop(unsafe { ManuallyDrop::take(&mut self._counts) });
        std::mem::forget(self);
        kept
    }
}

impl<K> Drop for Pending<K> {
    fn drop(&mut self) {
        if self.is_done {
            // SAFETY: MPI is done with both, and nobody uses them after this.
            unsafe {
                ManuallyDrop::drop(&mut self.kept);
                ManuallyDrop::drop(&mut self._counts);
            }
        }
    }
}
