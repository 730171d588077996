//! Training whose gradients travel in packets, of which some are lost.

use gradwire_trainer::config::{ExchangeKind, RunConfig, Settings, TransportKind};
use gradwire_trainer::run::{Outcome, run};

use crate::{Quiet, digits_job};

fn train(codec: &str, steps: u64, loss: Option<f64>, workers: usize) -> Outcome {
    let job = digits_job(codec, steps, |settings| {
        (settings.lr, settings.workers, settings.packet_loss) = (Some(0.1), Some(workers), loss);
    });
    run(&job, &mut Quiet::default()).unwrap()
}

#[test]
fn packets_without_loss_train_as_whole_frames_do() {
    let frames =
        digits_job("topk:density=0.05", 20, |settings| settings.exchange = Some(ExchangeKind::Server));
    let packets = digits_job("topk:density=0.05,max_packet_bytes=1200", 20, |_| ());
    let [frames, packets] = [frames, packets].map(|job| run(&job, &mut Quiet::default()).unwrap());
    assert_eq!(frames.summary.params_hash, packets.summary.params_hash);
    assert!(packets.metrics.iter().all(|line| line.packet_loss == Some(0.0)));
    assert!(frames.metrics.iter().all(|line| line.packet_loss.is_none()));
}

#[test]
fn with_a_tenth_of_the_packets_lost_training_ends_as_well() {
    const CODEC: &str = "topk:density=0.05,max_packet_bytes=256";
    let [whole, lossy] = [None, Some(0.1)].map(|loss| train(CODEC, 150, loss, 4));
    let accuracies = [&whole, &lossy].map(|outcome| 100.0 * outcome.summary.accuracy);
    let lost = lossy.metrics.iter().filter_map(|line| line.packet_loss).sum::<f64>() / 150.0;
    println!("{accuracies:?} %, {:.1} % of the packets lost", 100.0 * lost);
    // Of four workers, the server's own packets are never lost.
    assert!((lost - 0.075).abs() < 0.01, "{lost}");
    assert!(accuracies[0] > 90.0 && accuracies[1] > accuracies[0] - 1.0, "{accuracies:?}");
    let again = train(CODEC, 150, Some(0.1), 4);
    assert_eq!(again.summary.params_hash, lossy.summary.params_hash);
}

#[test]
fn settings_of_packets_that_do_not_go_together_are_refused_by_name() {
    let refused = |codec: &str, change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings { codec: Some(codec.to_owned()), ..Settings::default() };
        change(&mut settings);
        RunConfig::resolve(&settings).unwrap_err().to_string()
    };
    const PACKETS: &str = "topk:density=0.05,max_packet_bytes=1200";
    let gathered = refused(PACKETS, &|settings| settings.exchange = Some(ExchangeKind::AllGather));
    assert!(gathered.contains("only a server"), "{gathered}");
    let none = refused("topk:density=0.05", &|settings| settings.packet_loss = Some(0.1));
    assert!(none.contains("no packets to lose"), "{none}");
    let share = refused(PACKETS, &|settings| settings.packet_loss = Some(1.5));
    assert!(share.contains("0 to 1"), "{share}");
    let mpi = refused(PACKETS, &|settings| {
        (settings.packet_loss, settings.transport) = (Some(0.1), Some(TransportKind::Mpi));
    });
    assert!(mpi.contains("the network itself"), "{mpi}");
}
