//! Only the first gradient of a network allocates memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use paceline_learn::{Batch, Dice, Extent, Gradient, Model, Net, Scratch, net};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: both methods forward their arguments unchanged to the system's allocator, which fulfills the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_gradient_allocates_nothing_after_the_first() {
    let image = Extent { height: 8, width: 8, channels: 3 };
    let text = Net::new(Extent::row(192)).embed(10, 8).transformer(1, 2, 0.1).next_token(10);
    let nets = [
        ("mlp", net::mlp(192, &[40, 20], 10)),
        ("cnn", net::cnn(image, 10)),
        ("resnet8", net::resnet(Net::new(image), 1, 10)),
        ("resnet8-bn", net::resnet(Net::new(image).with_batch_norm(), 1, 10)),
        ("dropout", Net::new(image).conv(4, 3).relu().dropout(0.5).classes(10)),
        ("transformer", text),
    ];
    for (name, net) in nets {
        let mut dice = Dice::keyed(&[1]);
        let samples = 20;
        let batch = Batch {
            features: 192,
            inputs: (0..192 * samples).map(|_| dice.normal() as f32).collect(),
            labels: (0..samples as u32).map(|sample| sample % 10).collect(),
            keys: (0..samples as u64).collect(),
        };
        let params = net.initial(1);
        let (mut scratch, mut gradient) = (Scratch::default(), Gradient::zero(net.size()));
        net.gradient(&params, &batch, &mut scratch, &mut gradient);
        let before = COUNT.get();

        for _ in 0..3 {
            net.gradient(&params, &batch, &mut scratch, &mut gradient);
            net.evaluate(&params, &batch, &mut scratch);
        }

        assert_eq!(COUNT.get() - before, 0, "{name}");
    }
}
