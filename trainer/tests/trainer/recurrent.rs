//! The recurrent network: streams that go on, dropout that repeats, one matrix for input and output.

use gradwire_trainer::config::{RunConfig, Settings};
use gradwire_trainer::data::{Batch, Batches, Dataset, Level, Part, Source, Task, Text};
use gradwire_trainer::job::Job;
use gradwire_trainer::model::eval::evaluate;
use gradwire_trainer::model::{LstmConfig, Model, ModelConfig, ModelKind, Moment};
use gradwire_trainer::rng::{Draws, Purpose};

/// Sentences of a made-up language: a subject, a verb that goes with it, an object, and the end.
fn sentences(count: usize, seed: u64) -> String {
    let mut draws = Draws::new(seed, Purpose::Shuffle, 0, 0);
    let words = ["dog barks loudly", "cat sleeps softly", "bird sings sweetly", "fish swims deeply"];
    (0..count).map(|_| format!("the {} today\n", words[draws.below(words.len())])).collect()
}

fn made_up() -> Dataset {
    let parts = [400, 60, 60].map(|count| sentences(count, count as u64));
    let [train, valid, test] = parts.each_ref().map(String::as_str);
    Dataset::Text(Text::from_parts("made-up", Level::Words, train, Some(valid), test).unwrap())
}

fn config(dropout: f64) -> ModelConfig {
    ModelConfig::Lstm(LstmConfig { context: 5, width: 12, layers: 2, dropout })
}

fn built(dropout: f64) -> Box<dyn Model> {
    config(dropout).build(&made_up().task(), 3).unwrap()
}

fn gradient(model: &mut dyn Model, batch: &Batch, moment: Option<Moment>) -> (f32, Vec<f32>) {
    let mut grad = vec![f32::NAN; model.len()];
    if let Some(moment) = moment {
        model.begin(moment);
    }
    let loss = model.forward_backward(batch, &mut grad).unwrap();
    (loss, grad)
}

fn at(step: u64, rank: u32) -> Moment {
    Moment { seed: 1, rank, step, starts_epoch: step == 0 }
}

fn two_batches() -> [Batch; 2] {
    let data = made_up();
    let mut batches = config(0.0).batches(&data, 1, 4, 0, 1).unwrap();
    [batches.batch(0, 0), batches.batch(0, 1)]
}

#[test]
fn streams_go_on_where_the_step_before_ended() {
    let data = made_up();
    let Dataset::Text(text) = &data else { panic!() };
    let train = text.part(Part::Train);
    for world in [1, 2, 4] {
        let mut workers: Vec<_> =
            (0..world).map(|rank| Batches::streams(&data, 9, 8 / world, rank, world, 7).unwrap()).collect();
        let steps = workers[0].steps_per_epoch();
        assert_eq!(steps, (train.len() - 1) / 8 / 7);
        for epoch in 0..3 {
            let mut last: Option<Vec<u32>> = None;
            for step in 0..steps {
                let batches = workers.iter_mut().map(|worker| worker.batch(epoch, step));
                let (mut firsts, mut nexts) = (Vec::new(), Vec::new());
                for batch in batches {
                    let Batch::Tokens { shape, inputs, targets } = batch else { panic!() };
                    assert_eq!(shape, [8 / world, 7]);
                    for (inputs, targets) in inputs.chunks(7).zip(targets.chunks(7)) {
                        assert_eq!(inputs[1..], targets[..6]);
                        firsts.push(inputs[0]);
                        nexts.push(targets[6]);
                    }
                }
                assert!(last.is_none_or(|last| last == firsts), "world {world}, step {step}");
                last = Some(nexts);
            }
        }
    }
    let error = Batches::streams(&data, 9, 400, 0, 1, 7).unwrap_err();
    assert_eq!(error.key, "batch");
}

#[test]
fn what_a_stream_has_read_is_carried_within_an_epoch_alone() {
    let [first, second] = two_batches();
    let mut model = built(0.0);
    let alone = gradient(model.as_mut(), &second, None);
    gradient(model.as_mut(), &first, Some(at(0, 0)));
    assert!(model.carried().iter().any(|&value| value != 0.0));
    assert_eq!(gradient(model.as_mut(), &second, None), alone, "without a moment nothing is carried");
    gradient(model.as_mut(), &first, Some(at(0, 0)));
    let later = gradient(model.as_mut(), &second, Some(at(1, 0)));
    assert_ne!(later, alone);
    let afresh = gradient(model.as_mut(), &second, Some(Moment { starts_epoch: true, ..at(2, 0) }));
    assert_eq!(afresh, alone);
}

#[test]
fn another_model_goes_on_with_what_was_carried() {
    let [first, second] = two_batches();
    let mut model = built(0.4);
    gradient(model.as_mut(), &first, Some(at(0, 0)));
    let mut other = built(0.4);
    other.carry(&model.carried()).unwrap();
    let both = [&mut model, &mut other].map(|model| gradient(model.as_mut(), &second, Some(at(1, 0))));
    assert_eq!(both[0], both[1]);
    assert!(other.carry(&[0.0; 7]).is_err());
}

#[test]
fn dropout_repeats_by_step_and_rank_and_is_off_in_evaluation() {
    let [batch, _] = two_batches();
    let (mut dropping, mut plain) = (built(0.5), built(0.0));
    let mut loss = |step, rank| {
        gradient(dropping.as_mut(), &batch, Some(Moment { starts_epoch: true, ..at(step, rank) }))
    };
    let first = loss(3, 0);
    assert_eq!(loss(3, 0), first);
    assert_ne!(loss(4, 0).1, first.1);
    assert_ne!(loss(3, 1).1, first.1);
    let without = gradient(plain.as_mut(), &batch, None);
    assert_ne!(first, without);
    assert_eq!(gradient(dropping.as_mut(), &batch, None), without);
    assert_eq!(dropping.evaluate(&batch), plain.evaluate(&batch));
}

/// The mean over many masks of what is left of a value is that value.
#[test]
fn dropout_keeps_the_mean_of_the_loss_near() {
    let [batch, _] = two_batches();
    let (mut dropping, mut plain) = (built(0.3), built(0.0));
    let exact = gradient(plain.as_mut(), &batch, None).1;
    let mut mean = vec![0.0_f64; exact.len()];
    for step in 0..400 {
        let moment = Moment { starts_epoch: true, ..at(step, 0) };
        let grad = gradient(dropping.as_mut(), &batch, Some(moment)).1;
        mean.iter_mut().zip(&grad).for_each(|(mean, &g)| *mean += f64::from(g) / 400.0);
    }
    let dot: f64 = mean.iter().zip(&exact).map(|(mean, &g)| mean * f64::from(g)).sum();
    let square: f64 = exact.iter().map(|&g| f64::from(g).powi(2)).sum();
    assert!((dot / square - 1.0).abs() < 0.1, "{}", dot / square);
}

#[test]
fn the_embedding_has_one_gradient_for_input_and_output() {
    let task = Task::Tokens { vocabulary: 6 };
    let config = ModelConfig::Lstm(LstmConfig { context: 3, width: 4, layers: 1, dropout: 0.0 });
    let mut model = config.build(&task, 1).unwrap();
    let names: Vec<String> = model.layout().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.iter().filter(|name| name.contains("embedding")).count(), 1);
    assert!(names.iter().skip(1).all(|name| name.starts_with("layers.")), "{names:?}");
    // Token 5 is neither read nor predicted; the output layer alone moves its row.
    let batch = Batch::Tokens { shape: [1, 3], inputs: vec![0, 1, 2], targets: vec![1, 2, 3] };
    let grad = gradient(model.as_mut(), &batch, None).1;
    for row in grad[..24].chunks(4) {
        assert!(row.iter().any(|&g| g != 0.0));
    }
}

#[test]
fn sizes_are_those_of_the_study() {
    let task = Task::Tokens { vocabulary: 10_000 };
    for (width, len) in [(100, 1_161_600), (300, 4_444_800), (500, 9_008_000)] {
        let config = ModelConfig::Lstm(LstmConfig { width, ..LstmConfig::default() });
        assert_eq!(config.build(&task, 1).unwrap().len(), len);
    }
}

#[test]
fn a_part_is_evaluated_as_one_stream_that_is_carried() {
    let data = made_up();
    let mut model = built(0.5);
    let [one, two] = [7, 64].map(|context| evaluate(model.as_mut(), &data, Part::Test, 1, context).unwrap());
    assert_eq!(one.count() as usize, data.examples(Part::Test));
    assert!((one.loss() - two.loss()).abs() < 1e-6, "{one:?}, {two:?}");
    let apart = evaluate(model.as_mut(), &data, Part::Test, 8, 7).unwrap();
    assert!((one.loss() - apart.loss()).abs() > 1e-6, "{one:?}, {apart:?}");
}

pub(crate) fn settings(workers: usize, epochs: u64) -> Settings {
    Settings {
        data: Some(Source::Text),
        model: Some(ModelKind::Lstm),
        hidden: Some(vec![16]),
        bptt: Some(8),
        dropout: Some(0.2),
        codec: Some("topk:density=0.1".into()),
        batch: Some(8),
        workers: Some(workers),
        epochs: Some(epochs),
        lr: Some(3.0),
        eval_every: Some(0),
        hash_every: Some(1),
        checkpoint_every: Some(7),
        ..Settings::default()
    }
}

pub(crate) fn job_of(settings: &Settings) -> Job {
    Job::with_data(RunConfig::resolve(settings).unwrap(), made_up()).unwrap()
}

fn job(workers: usize, epochs: u64) -> Job {
    job_of(&settings(workers, epochs))
}

#[test]
fn it_learns_a_made_up_language() {
    let (outcome, _) = crate::checkpoints::run(&job(2, 16), None);
    let perplexity = outcome.unwrap().summary.perplexity.unwrap();
    println!("perplexity {perplexity:.3}");
    // Six words a sentence, one of which is drawn from four: 4^(1/6) = 1.26. Of 15 words at random it is 15.
    assert!(perplexity < 1.5, "{perplexity}");
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    let job = job(2, 1);
    let (whole, keeper) = crate::checkpoints::run(&job, None);
    let whole = whole.unwrap();
    let middle = keeper.checkpoints.iter().find(|checkpoint| checkpoint.steps == 7).unwrap();
    assert_eq!(middle.carried.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let store = gradwire_trainer::checkpoint::Store::of_run(folder.path());
    store.write(middle, &job.layout).unwrap();
    let read = gradwire_trainer::checkpoint::latest(folder.path()).unwrap().read_all(&job.layout).unwrap();
    assert_eq!(&read, middle);
    let resumed = crate::checkpoints::run(&job, Some((&read, &keeper.metrics[..7]))).0.unwrap();
    assert_eq!(resumed.summary.params_hash, whole.summary.params_hash);
    let mut forgetful = read;
    forgetful.carried.clear();
    let other = crate::checkpoints::run(&job, Some((&forgetful, &keeper.metrics[..7]))).0.unwrap();
    assert_ne!(other.summary.params_hash, whole.summary.params_hash, "what is carried matters");
}
