//! The threads of a hook.

use std::io;
use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// Runs the engine on a thread of its own. With more threads it is one of a pool, whose others help it to
/// encode; they end when it does.
pub(super) fn run(
    threads: usize,
    engine: impl FnOnce() + Send + 'static,
) -> Result<Vec<JoinHandle<()>>, ThreadPoolBuildError> {
    let mut handles = Vec::new();
    let mut begin = |run: Box<dyn FnOnce() + Send>| -> io::Result<()> {
        handles.push(Builder::new().name("gradwire".to_owned()).spawn(run)?);
        Ok(())
    };
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        // As a thread of its own, it ends alone.
        .panic_handler(drop)
        .spawn_handler(|thread| begin(Box::new(|| thread.run())))
        .build()?;
    pool.spawn(engine);
    drop(pool);
    Ok(handles)
}
