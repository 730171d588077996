//! Training in one process reaches what it should, in seconds.

use gradwire_trainer::data::{Batches, Dataset, Part, optdigits, shakespeare};
use gradwire_trainer::model::ModelKind;
use gradwire_trainer::model::eval::{Evaluation, evaluate};
use gradwire_trainer::optim::{AdamWConfig, OptimizerConfig, Schedule, SgdConfig};

use crate::word;

struct Run {
    steps: usize,
    batch: usize,
    rate: f32,
    optimizer: OptimizerConfig,
}

fn train(dataset: &Dataset, name: &str, run: &Run) -> Evaluation {
    let config = word::<ModelKind>(name).suited_to(&dataset.task());
    let mut model = config.build(&dataset.task(), 1).unwrap();
    let mut batches = Batches::new(dataset, 1, run.batch, 0, 1, config.context()).unwrap();
    let mut optimizer = run.optimizer.build(model.len(), &[]).unwrap();
    let schedule = Schedule::constant(run.rate).unwrap();
    let (mut params, mut grad) = (vec![0.0; model.len()], vec![0.0; model.len()]);
    model.params(&mut params);
    let per_epoch = batches.steps_per_epoch();
    for step in 0..run.steps {
        let batch = batches.batch((step / per_epoch) as u64, step % per_epoch);
        let loss = model.forward_backward(&batch, &mut grad).unwrap();
        assert!(loss.is_finite());
        optimizer.step(&mut params, &grad, schedule.lr(step as u64));
        model.set_params(&params);
    }
    evaluate(model.as_mut(), dataset, Part::Test, 200, config.context()).unwrap()
}

#[test]
fn plain_sgd_learns_the_digits() {
    let digits = optdigits::load().unwrap();
    let optimizer = OptimizerConfig::Sgd(SgdConfig::default());
    for (name, rate) in [("mlp", 0.3), ("cnn", 0.1)] {
        let result = train(&digits, name, &Run { steps: 300, batch: 32, rate, optimizer });
        println!(
            "{name}: accuracy {:.4} ± {:.4}, loss {:.4}",
            result.accuracy(),
            result.resolution(),
            result.loss()
        );
        assert!(result.accuracy() >= 0.93, "{name}: {result:?}");
        assert_eq!(result.count(), 599);
    }
}

#[test]
fn the_transformer_learns_more_than_the_frequency_of_letters() {
    let text = shakespeare::load().unwrap();
    let optimizer = OptimizerConfig::AdamW(AdamWConfig::default());
    let result = train(&text, "gpt", &Run { steps: 200, batch: 16, rate: 3e-3, optimizer });
    println!("gpt: loss {:.4}, perplexity {:.3}", result.loss(), result.perplexity());
    // The entropy of single letters is 3.31 nats, that of a letter after the one before it about 2.45.
    assert!(result.loss() < 2.5, "{result:?}");
    assert_eq!(result.count(), 111_539);
}
