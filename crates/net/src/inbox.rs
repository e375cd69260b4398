//! A worker's inbox: what happens to it, told by any thread.
//!
//! A worker that waits may sleep in a poll of its sockets instead of on this queue. A thread that puts an event into the queue then
//! ends that poll.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, OnceLock};

use mio::Waker;
use paceline_runtime::edge::Event;

pub fn inbox() -> (Teller, Inbox) {
    let (told, events) = mpsc::channel();
    let bed = Arc::<Bed>::default();
    (Teller { told, bed: bed.clone() }, Inbox { events, bed })
}

/// Puts events into a worker's inbox.
#[derive(Clone)]
pub struct Teller {
    told: Sender<Event>,
    bed: Arc<Bed>,
}

/// What a worker reads. It can be told something as long as a [`Teller`] lives.
pub struct Inbox {
    events: Receiver<Event>,
    bed: Arc<Bed>,
}

/// Where a worker sleeps that does not wait for its queue.
#[derive(Default)]
struct Bed {
    is_asleep: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Teller {
    pub fn send(&self, event: Event) -> Result<(), SendError<Event>> {
        self.told.send(event)?;
        // Either this sees that the worker sleeps, or the worker sees the event before it does: both orders are total.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.bed.is_asleep.load(Ordering::SeqCst)
            && self.bed.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.bed.waker.get()
        {
            // It cannot fail while the worker sleeps there.
            let _ = waker.wake();
        }
        Ok(())
    }

    /// What wakes the worker where it sleeps.
    pub fn set_waker(&self, waker: Waker) {
        let _ = self.bed.waker.set(waker);
    }
}

impl Inbox {
    /// What happens next; `None` if nothing can any more.
    pub fn wait(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    /// What has happened.
    pub fn take(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Sleeps in `sleep`, unless something has happened. It ends when the waker is used, and may end earlier.
    pub fn sleep(&self, sleep: impl FnOnce()) -> Option<Event> {
        self.bed.is_asleep.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let event = self.take();
        if event.is_none() {
            sleep();
        }
        self.bed.is_asleep.store(false, Ordering::SeqCst);
        event
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mio::{Events, Poll, Token};
    use paceline_runtime::WorkerId;

    use super::*;

    #[test]
    fn whoever_tells_a_sleeping_worker_something_wakes_it() {
        const COUNT: u32 = 20_000;
        let (teller, inbox) = inbox();
        let mut poll = Poll::new().expect("there are descriptors");
        let waker = Waker::new(poll.registry(), Token(0)).expect("there are descriptors");
        teller.set_waker(waker);
        let telling = std::thread::spawn(move || {
            for who in (0..COUNT).map(WorkerId) {
                teller.send(Event::Started { who }).expect("it is read");
                // Now and then the worker has nothing to do, and goes to bed just when it is told.
                (0..who.0 % 200).for_each(|_| std::hint::spin_loop());
            }
            teller
        });
        let (mut events, mut heard) = (Events::with_capacity(1), 0);
        while heard < COUNT {
            let mut was_woken = true;
            let told = inbox.sleep(|| {
                poll.poll(&mut events, Some(Duration::from_secs(10))).expect("it can be polled");
                was_woken = !events.is_empty();
            });
            assert!(was_woken, "nobody woke it for event {heard}");
            // A waker of an event that was taken before may end a sleep for nothing.
            heard += u32::from(told.or_else(|| inbox.take()).is_some());
        }
        drop(telling.join());
        assert!(inbox.wait().is_none());
    }
}
