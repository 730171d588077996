//! The same bits from the same seed, alone and beside another thread, and models that refuse what they cannot
//! do.

use gradwire_trainer::data::{Batch, Batches, Dataset, Task, optdigits, shakespeare};
use gradwire_trainer::model::{GptConfig, MlpConfig, Model, ModelConfig, ModelError, ModelKind};
use gradwire_trainer::optim::{Optimizer, Sgd, SgdConfig};

use crate::word;

fn model(name: &str, dataset: &Dataset, seed: u64) -> Box<dyn Model> {
    word::<ModelKind>(name).suited_to(&dataset.task()).build(&dataset.task(), seed).unwrap()
}

/// Bits of the parameters after some steps.
fn trained(name: &str, dataset: &Dataset) -> Vec<u32> {
    let mut model = model(name, dataset, 3);
    let mut batches = Batches::new(dataset, 3, 8, 0, 1, 32).unwrap();
    let mut sgd = Sgd::new(model.len(), SgdConfig { momentum: 0.9, ..Default::default() }).unwrap();
    let (mut params, mut grad) = (vec![0.0; model.len()], vec![0.0; model.len()]);
    model.params(&mut params);
    for step in 0..6 {
        model.forward_backward(&batches.batch(0, step), &mut grad).unwrap();
        sgd.step(&mut params, &grad, 0.05);
        model.set_params(&params);
    }
    params.into_iter().map(f32::to_bits).collect()
}

#[test]
fn runs_repeat_bit_by_bit_alone_and_in_two_threads_at_once() {
    let (digits, text) = (optdigits::load().unwrap(), shakespeare::load().unwrap());
    for (name, dataset) in [("mlp", &digits), ("cnn", &digits), ("gpt", &text)] {
        let alone = trained(name, dataset);
        assert_eq!(alone, trained(name, dataset), "{name} twice");
        std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(|| trained(name, dataset)));
            for thread in threads {
                assert_eq!(alone, thread.join().unwrap(), "{name} in two threads");
            }
        });
    }
}

#[test]
fn parameters_go_round() {
    let digits = optdigits::load().unwrap();
    for name in ["mlp", "cnn"] {
        let mut model = model(name, &digits, 1);
        let total: usize = model.layout().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(total, model.len());
        let sent: Vec<f32> = (0..total).map(|n| n as f32 - 0.5).collect();
        model.set_params(&sent);
        let mut back = vec![0.0; total];
        model.params(&mut back);
        assert_eq!(sent, back);
    }
}

#[test]
fn initial_weights_depend_on_the_seed_alone() {
    let digits = optdigits::load().unwrap();
    let weights = |seed| {
        let model = model("mlp", &digits, seed);
        let mut params = vec![0.0; model.len()];
        model.params(&mut params);
        params
    };
    assert_eq!(weights(1), weights(1));
    assert_ne!(weights(1), weights(2));
    // sqrt(2 / 64), and the bias behind the 64 * 128 weights is zero.
    let first = &weights(1)[..8192];
    let deviation = (first.iter().map(|w| w * w).sum::<f32>() / 8192.0).sqrt();
    assert!((deviation - 0.1768).abs() < 0.01, "{deviation}");
    assert!(weights(1)[8192..8320].iter().all(|&bias| bias == 0.0));
}

#[test]
fn default_models_have_the_documented_sizes() {
    let sized = |name: &str, task: Task| {
        let config = word::<ModelKind>(name).suited_to(&task);
        config.build(&task, 0).unwrap().len()
    };
    let images = |shape| Task::Images { shape, classes: 10 };
    assert_eq!(sized("mlp", images([1, 8, 8])), 9_610);
    assert_eq!(sized("mlp", images([1, 28, 28])), 535_818);
    assert_eq!(sized("cnn", images([1, 8, 8])), 13_706);
    assert_eq!(sized("cnn", images([1, 28, 28])), 421_642);
    assert_eq!(sized("cnn", images([3, 32, 32])), 545_098);
    assert_eq!(sized("gpt", Task::Tokens { vocabulary: 65 }), 110_464);
}

#[test]
fn models_that_do_not_fit_the_task_are_refused() {
    let (images, tokens) = (Task::Images { shape: [1, 3, 8], classes: 10 }, Task::Tokens { vocabulary: 9 });
    let message = |config: ModelConfig, task| config.build(&task, 0).err().unwrap().to_string();
    let named = |name, task| word::<ModelKind>(name).suited_to(&task);
    assert_eq!(message(named("mlp", tokens), tokens), "model = mlp: expected gpt or lstm, which read text");
    assert_eq!(
        message(named("gpt", images), images),
        "model = gpt: expected mlp, cnn or resnet20, which read images"
    );
    assert!(message(named("cnn", images), images).starts_with("model = cnn with 3x8 images: expected"));
    let config = ModelConfig::Mlp(MlpConfig { hidden: vec![5, 0] });
    assert_eq!(message(config, images), "hidden = 0: expected 1 to 65536");
    let config = ModelConfig::Gpt(GptConfig { heads: 3, ..Default::default() });
    assert_eq!(message(config, tokens), "heads = 3: expected a divisor of the width 64");
}

#[test]
fn batches_that_do_not_fit_the_model_are_refused() {
    let digits = optdigits::load().unwrap();
    let mut mlp = model("mlp", &digits, 0);
    let mut gpt = ModelConfig::Gpt(GptConfig::default()).build(&Task::Tokens { vocabulary: 9 }, 0).unwrap();
    let images = |shape: [usize; 4], values: usize, labels: Vec<u32>| Batch::Images {
        shape,
        features: vec![0.0; values],
        labels,
    };
    let tokens = |shape, inputs: Vec<u32>| Batch::Tokens { shape, targets: vec![0; inputs.len()], inputs };
    let long = vec![0; 33];
    for batch in [
        images([1, 1, 8, 9], 72, vec![0]),
        images([1, 1, 8, 8], 63, vec![0]),
        images([2, 1, 8, 8], 128, vec![0]),
        images([1, 1, 8, 8], 64, vec![10]),
        images([0, 1, 8, 8], 0, vec![]),
    ] {
        assert!(matches!(mlp.evaluate(&batch), Err(ModelError::Batch(_))), "{batch:?}");
    }
    for batch in [tokens([1, 33], long), tokens([1, 2], vec![0, 9]), tokens([2, 2], vec![0, 0])] {
        assert!(matches!(gpt.evaluate(&batch), Err(ModelError::Batch(_))), "{batch:?}");
    }
    assert!(matches!(mlp.evaluate(&tokens([1, 1], vec![0])), Err(ModelError::Batch(_))));
    assert!(matches!(gpt.evaluate(&images([1, 1, 8, 8], 64, vec![0])), Err(ModelError::Batch(_))));
}
