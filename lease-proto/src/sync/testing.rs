//! What the tests of interleavings share.

use std::task::Wake;

#[cfg(not(kvlease_loom))]
use super::primitives::thread;

/// Every interleaving of up to five preemptions under loom (all of them take minutes), some of them without.
pub(crate) fn model(test: impl Fn() + Send + Sync + 'static) {
    #[cfg(kvlease_loom)]
    {
        let mut every = loom::model::Builder::new();
        every.preemption_bound = every.preemption_bound.or(Some(5)); // LOOM_MAX_PREEMPTIONS raises it
        every.check(test);
    }
    #[cfg(not(kvlease_loom))]
    (0..500).for_each(|_| test());
}

/// A model with a mistake in it, which loom must find. In a process of its own, because loom aborts where it finds a deadlock.
#[cfg(kvlease_loom)]
pub(crate) fn seeded<F: Fn() + Send + Sync + 'static>(test: F) {
    const ALONE: &str = "KVLEASE_SEEDED";
    if std::env::var_os(ALONE).is_some() {
        return model(test);
    }
    // The closure's name is that of the test, with the crate before and `{{closure}}` after it.
    let name = core::any::type_name::<F>().split_once("::").and_then(|(_, path)| path.rsplit_once("::")).unwrap().0;
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args([name, "--exact", "--test-threads=1"]).env(ALONE, "").env("RUST_BACKTRACE", "0");
    let output = alone.output().unwrap();
    let said = std::string::String::from_utf8_lossy(&output.stderr) + std::string::String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("panicked"), "not noticed: {said}");
}

/// What a waker rings. loom's `unpark` also wakes threads that wait for something else, so there it is another bell.
#[cfg(kvlease_loom)]
pub(crate) struct Bell(loom::sync::Notify);
#[cfg(not(kvlease_loom))]
pub(crate) struct Bell(thread::Thread);

impl Bell {
    #[cfg(kvlease_loom)]
    pub(crate) fn new() -> Self {
        Self(loom::sync::Notify::new())
    }

    #[cfg(not(kvlease_loom))]
    pub(crate) fn new() -> Self {
        Self(thread::current())
    }

    pub(crate) fn wait(&self) {
        #[cfg(kvlease_loom)]
        self.0.wait();
        #[cfg(not(kvlease_loom))]
        thread::park();
    }
}

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        #[cfg(kvlease_loom)]
        self.0.notify();
        #[cfg(not(kvlease_loom))]
        self.0.unpark();
    }
}
