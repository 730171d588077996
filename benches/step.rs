//! One step of exchange between threads: encode, send, receive, decode, divide, at every rank.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use gradwire::plan::Plan;
use gradwire::state::MemoryChoice;
use gradwire::{Grad, Layout, Memory, Source, Spec, StepKey};
use gradwire_benches::{Aligned, Gradient, Input, Lab, Quality, Settings, Work, harness, squared_error};
use gradwire_transports::exchange::Exchange;
use gradwire_transports::local::{self, LocalTransport};
use gradwire_transports::{Deadline, Transport};

const CODECS: [&str; 4] = ["none", "topk:density=0.01", "qsgd:bits=4,entropy=fixed", "randomk:density=0.01"];
const WORLDS: [u32; 3] = [2, 4, 8];
/// Every rank has a gradient, a mean and buffers of its own, so a rank's share is smaller than what one codec
/// is measured on.
const SHARE: usize = 8;

fn main() {
    let settings = Settings::from_env();
    let len = settings.len / SHARE;
    let mut criterion = harness();
    let mut lab = Lab::new("Steps", &settings, len);
    let gradient = Arc::new(Gradient::new(Input::Heavy, len, &settings));
    let mut group = criterion.benchmark_group("step");
    for world in WORLDS {
        for codec in CODECS {
            lab.compare(
                &mut group,
                (&format!("step {codec}"), &format!("heavy, {world} ranks")),
                len,
                || {
                    let mut team = Team::new(codec, world, &gradient);
                    (0..3).for_each(|_| team.step());
                    let quality = team.checked_step();
                    Work::new(quality, move || team.step())
                },
            );
        }
    }
    group.finish();
    lab.finish();
    criterion.final_summary();
}

/// What a rank is asked to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Step(u64),
    /// A step whose mean is sent back.
    Checked(u64),
}

/// What a rank says when it is done.
struct Done {
    frame_bytes: usize,
    mean: Option<Vec<f32>>,
}

/// Ranks that wait for orders, a thread each. They end when the team is dropped.
struct Team {
    orders: Vec<Sender<Order>>,
    done: Receiver<Done>,
    gradient: Arc<Gradient>,
    next: u64,
}

impl Team {
    fn new(codec: &str, world: u32, gradient: &Arc<Gradient>) -> Self {
        let (report, done) = channel();
        let spec = Spec::parse(codec).expect("a spelling");
        let start = |transport: LocalTransport| {
            let (sender, orders) = channel();
            let (gradient, report) = (Arc::clone(gradient), report.clone());
            thread::spawn(move || work(transport, spec, &gradient, &orders, &report));
            sender
        };
        let orders = local::world(world).into_iter().map(start).collect();
        Self { orders, done, gradient: Arc::clone(gradient), next: 0 }
    }

    fn all(&mut self, order: impl Fn(u64) -> Order) -> Vec<Done> {
        let order = order(self.next);
        self.next += 1;
        self.orders.iter().for_each(|orders| orders.send(order).expect("the rank waits for orders"));
        self.orders.iter().map(|_| self.done.recv().expect("the rank finishes its step")).collect()
    }

    fn step(&mut self) {
        self.all(Order::Step);
    }

    /// A step after which all ranks hold the same mean.
    fn checked_step(&mut self) -> Quality {
        let step = self.next;
        let done = self.all(Order::Checked);
        let means: Vec<_> = done.iter().filter_map(|done| done.mean.as_ref()).collect();
        assert_eq!(means.len(), self.orders.len());
        assert!(means.windows(2).all(|pair| pair[0] == pair[1]), "two ranks hold different means");
        let world = self.orders.len();
        let mut expected = vec![0.0f32; self.gradient.len()];
        for rank in 0..world {
            let grad = self.gradient.step(step + rank as u64);
            expected.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += grad / world as f32);
        }
        // Of this step alone: what memories held back from earlier steps counts as error.
        let error = squared_error(&expected, means[0]);
        assert!(error.is_finite(), "a mean that is not finite");
        Quality { bytes: Some(done[0].frame_bytes), error: Some(error) }
    }
}

/// One rank: carries out orders until there are no more.
fn work(
    mut transport: LocalTransport,
    spec: Spec,
    gradient: &Gradient,
    orders: &Receiver<Order>,
    report: &Sender<Done>,
) {
    let layout = Layout::packed([("gradient", vec![gradient.len()])]).expect("a layout");
    let plan = Plan::of(&spec, &layout.as_ref());
    let route = Exchange::best_route(&plan);
    let mut exchange = Exchange::new(plan, layout, route).expect("a route for the codec");
    let mut mean = Aligned::filled(gradient.len(), 0.0);
    let mut memory =
        (spec.memory == MemoryChoice::ErrorFeedback).then(|| Memory::new(vec![0.0; gradient.len()]));
    let rank = transport.rank().0;
    while let Ok(order) = orders.recv() {
        let (Order::Step(step) | Order::Checked(step)) = order;
        let key = StepKey { seed: 3, step, source: Source::Rank(rank) };
        let grad = Grad::F32(gradient.step(step + u64::from(rank)));
        let deadline = Deadline::after(Duration::from_secs(60));
        exchange.start(&mut transport, key, grad, memory.as_mut(), deadline).expect("the step starts");
        let finished = exchange.finish(&mut transport, mean.as_mut_slice(), memory.as_mut(), deadline);
        let frame_bytes = finished.expect("the step finishes").frame_bytes;
        let mean = (order == Order::Checked(step)).then(|| mean.as_slice().to_vec());
        report.send(Done { frame_bytes, mean }).expect("the team waits");
    }
}
