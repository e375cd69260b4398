//! Meshes of one process, over real sockets.

use std::net::TcpListener;
use std::sync::mpsc;

use paceline_runtime::codec::{Codec, Payload};
use paceline_runtime::coordination::Word;
use paceline_runtime::wire::{AnyOptimizerState, Published, Tail};

use super::*;
use crate::inbox::inbox;

struct Member {
    mesh: Mesh,
    inbox: Inbox,
    words: Receiver<Up>,
}

/// Members of one view whose links are made by and by.
fn members(n: u32, size: usize) -> (Vec<Member>, Arc<View>) {
    members_that(n, size, false)
}

fn members_that(n: u32, size: usize, shares_memory: bool) -> (Vec<Member>, Arc<View>) {
    let listeners: Vec<TcpListener> =
        (0..n).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("there is a port")).collect();
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(|it| it.local_addr().expect("it is bound")).collect();
    let view = View { incarnation: 1, number: 1, members: (0..n).map(WorkerId).collect() };
    let view = Arc::new(view);
    let start = |(me, listener): (u32, TcpListener)| {
        let ((events, inbox), (up, words)) = (inbox(), mpsc::channel());
        let mesh = Mesh::start(MeshConfig {
            me: WorkerId(me),
            secret: [1, 2],
            security: None,
            listener,
            shape: Shape { seed: 1, params: size, buffers: 0, codec: Codec::Dense },
            shares_memory,
            patience: Duration::from_secs(20),
            clock: Clock::from(Duration::ZERO),
            events,
            up,
        });
        let mesh = mesh.expect("it starts");
        for (who, address) in (0..).map(WorkerId).zip(&addresses) {
            mesh.give(Command::Peer { who, address: *address });
        }
        let (view, lost) = (view.clone(), Arc::default());
        mesh.give(Command::View { view, lost, closes: false });
        Member { mesh, inbox, words }
    };
    ((0..n).zip(listeners).map(start).collect(), view)
}

impl Member {
    fn sum(&mut self, view: &Arc<View>, number: u64, values: Vector) -> Vec<f32> {
        let payload = Arc::new(Payload::dense(values));
        let entry = Entry::Sum { payload, tail: Tail::default() };
        self.mesh.exchange(Ticket(number), view.clone(), number, entry);
        loop {
            let event = self.mesh.next(&self.inbox).expect("the mesh lives");
            if let Event::For { news: News::Summed { sum, .. }, .. } = event {
                return sum.gradient.sum.to_vec();
            }
        }
    }
}

#[test]
fn sums_of_every_length_follow_each_other_whoever_serves_the_links() {
    // Whole entries, short chunks, the longest that a worker serves, and one of the thread of the links, with two members and with more than cores.
    for (n, size) in [(2, 1000), (2, 20_000), (2, 262_144), (2, 300_001), (5, 1000), (5, 400_000)] {
        let (mut members, view) = members(n, size);
        std::thread::scope(|scope| {
            for (rank, member) in members.iter_mut().enumerate() {
                let view = &view;
                scope.spawn(move || {
                    for number in 1..=20 {
                        let value = |i: usize, rank: usize| (i % 89 + rank) as f32 * 0.37;
                        let mine = (0..size).map(|i| value(i, rank)).collect();
                        let sum = member.sum(view, number, mine);
                        let expected =
                            |i| (1..n as usize).fold(value(i, 0), |x, r| x + value(i, r));
                        assert!(sum.iter().enumerate().all(|(i, x)| *x == expected(i)));
                        if number % 7 == rank as u64 {
                            // Now and then a member is late, and the others sleep.
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
        });
    }
}

/// Adds a few times; in each exchange another member is late, by so much that the others sleep.
fn add_in_turns(members: &mut [Member], view: &Arc<View>, numbers: std::ops::RangeInclusive<u64>) {
    std::thread::scope(|scope| {
        for (rank, member) in members.iter_mut().enumerate() {
            let numbers = numbers.clone();
            scope.spawn(move || {
                for number in numbers {
                    if number % view.members.len() as u64 == rank as u64 {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    let sum = member.sum(view, number, Vector::filled(1.0, 1000));
                    assert_eq!(sum[999], view.members.len() as f32);
                }
            });
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn members_of_one_host_wake_each_other_also_when_they_stop_looking() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut members, crowd) = members_that(cores as u32 + 1, 1000, true);
    while !members.iter().all(|member| member.mesh.is_near(&crowd)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (done, heard) = mpsc::channel();
    std::thread::spawn(move || {
        // Each has a core and looks; then there is one member more than cores, and all sleep; and again.
        let few = View { number: 2, members: crowd.members[..cores].to_vec(), ..*crowd };
        add_in_turns(&mut members[..cores], &Arc::new(few), 1..=9);
        let crowd = View { number: 3, ..(*crowd).clone() };
        add_in_turns(&mut members, &Arc::new(crowd), 10..=19);
        let few =
            View { number: 4, members: (0..cores as u32).map(WorkerId).collect(), incarnation: 1 };
        add_in_turns(&mut members[..cores], &Arc::new(few), 20..=40);
        let _ = done.send(());
    });
    heard.recv_timeout(Duration::from_secs(20)).expect("nobody waits for ever");
}

#[test]
fn links_close_with_their_mesh_though_somebody_can_still_give_it_commands() {
    let (mut members, view) = members(2, 1000);
    std::thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(|| member.sum(&view, 1, Vector::zeros(1000)));
        }
    });
    let handle = members[0].mesh.handle();
    // It has nothing to wait for.
    members[1].mesh.hand_back();

    drop(members.remove(0));

    let word = members[0].words.recv_timeout(Duration::from_secs(10));
    let suspected = Word::Suspect { peer: WorkerId(0), view: 1 };
    assert!(matches!(word, Ok(Up::Word(word)) if word == suspected));
    handle.give(Command::Published);
}

/// Links that are made, so that what follows goes over them.
fn meet(members: &mut [Member], view: &Arc<View>, size: usize) {
    std::thread::scope(|scope| {
        for member in members {
            scope.spawn(|| member.sum(view, 1, Vector::zeros(size)));
        }
    });
}

#[test]
fn a_worker_that_enters_a_sum_and_then_ends_still_answers_reads() {
    let (mut members, view) = members(2, 1000);
    meet(&mut members, &view, 1000);
    let (reign, version, done) = (0, 0, Arc::default());
    let (params, optimizer) = (Arc::new(Vector::filled(2.5, 1000)), AnyOptimizerState::default());
    let published = Published { params, optimizer, reign, version, done };
    members[0].mesh.shelves.publish(Shelf::Replica, published);
    let entry = Entry::Sum {
        payload: Arc::new(Payload::dense(Vector::zeros(1000))),
        tail: Tail::default(),
    };

    // It enters on its own thread, and never waits for the sum.
    members[0].mesh.exchange(Ticket(2), view, 2, entry);
    members[0].mesh.hand_back();

    let (to, found) = mpsc::channel();
    let (of, shelf) = (vec![WorkerId(0)], Shelf::Replica);
    members[1].mesh.give(Command::Collect { of, shelf, to });
    let found = found.recv_timeout(Duration::from_secs(10)).expect("it answers");
    assert_eq!(found[0][999], 2.5);
}

#[test]
fn what_was_said_before_the_end_arrives_whole() {
    // Longer than a turn of a link, shorter than what the system keeps.
    const SIZE: usize = 900_000;
    let (mut members, view) = members(2, SIZE);
    meet(&mut members, &view, SIZE);
    let replica = Arc::new(Vector::filled(1.5, SIZE));
    let letter = Letter::Part { samples: 1, parts: 2, at: Duration::ZERO, replica };

    let first = members.remove(0);
    first.mesh.give(Command::Send { to: WorkerId(1), letter: Arc::new(letter) });
    drop(first);

    let (done, heard) = mpsc::channel();
    let second = members.remove(0);
    std::thread::spawn(move || drop(done.send(second.mesh.next(&second.inbox))));
    let event = heard.recv_timeout(Duration::from_secs(10)).expect("it arrives");
    let Some(Event::For { news: News::Letter { letter, .. }, .. }) = event else {
        panic!("a letter was expected")
    };
    assert!(matches!(*letter, Letter::Part { replica, .. } if replica.len() == SIZE));
}
