//! Runs a test in a process of its own, where `libcuda.so.1` is the double.

use std::{
    any::type_name_of_val,
    env,
    ffi::{CString, c_char, c_int, c_void},
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    ptr::NonNull,
    sync::Mutex,
};

use gpu_mem::{Allocation, Memory, MemoryError};
use libloading::Library;

const CHILD: &str = "GPU_MEM_TEST_CHILD";
const LIBRARY: &str = "libcuda.so.1";
const DOUBLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/libcuda.c");
const STUB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stub.c");

/// The driver that the process of a test finds.
#[derive(Clone, Copy)]
pub(crate) enum Driver {
    /// The double, as the environment says.
    Double(&'static [(&'static str, &'static str)]),
    /// The double without a function that drivers have.
    Lacking,
    /// The toolkit's stub under the driver's name.
    Stub,
    /// None, unless this machine has one.
    Missing,
}

pub(crate) const ONE_DEVICE: Driver = Driver::Double(&[]);
pub(crate) const TWO_DEVICES: Driver = Driver::Double(&[("DOUBLE_DEVICES", "2")]);

/// Runs `test`, a closure in the test's function, in a process of its own. At its end nothing may be outstanding there.
pub(crate) fn on(driver: Driver, test: impl Fn(&Double)) {
    if env::var_os(CHILD).is_some() {
        let double = Double;
        test(&double);
        if matches!(driver, Driver::Double(_) | Driver::Lacking) {
            assert_eq!(double.outstanding(), Outstanding::default());
        }
        return;
    }
    // `cuda::start::some_test::{{closure}}`, of which the test's name is what lies between.
    let closure = type_name_of_val(&test);
    let name = closure.split_once("::").and_then(|(_, rest)| rest.strip_suffix("::{{closure}}")).expect("a closure in a test");
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
    let folder = match driver {
        Driver::Double(settings) => {
            child.envs(settings.iter().copied());
            Some(compiled("whole", DOUBLE, &[]))
        }
        Driver::Lacking => Some(compiled("lacking", DOUBLE, &["-DNO_DMA_BUF"])),
        Driver::Stub => Some(compiled("stub", STUB, &[])),
        Driver::Missing => None,
    };
    if let Some(folder) = folder {
        let paths = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = env::join_paths([folder].into_iter().chain(env::split_paths(&paths))).unwrap();
        child.env("LD_LIBRARY_PATH", paths);
    }
    let output = child.output().unwrap();
    let told = [output.stdout, output.stderr].map(|told| String::from_utf8_lossy(&told).into_owned());
    assert!(output.status.success() && told[0].contains("1 passed"), "{name}: {}\n{}{}", output.status, told[0], told[1]);
}

/// The folder with that library in it, compiled once by each run of the tests; and beside it, as where a toolkit is installed, the stub
/// under the name that programs are linked against.
fn compiled(variant: &'static str, source: &str, flags: &[&str]) -> PathBuf {
    static FOLDERS: Mutex<Vec<(&str, PathBuf)>> = Mutex::new(Vec::new());
    let mut folders = FOLDERS.lock().unwrap_or_else(|one_failed| one_failed.into_inner());
    if let Some((_, folder)) = folders.iter().find(|(known, _)| *known == variant) {
        return folder.clone();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-double-{variant}"));
    fs::create_dir_all(&folder).unwrap();
    compile(source, flags, &folder.join(LIBRARY));
    compile(STUB, &[], &folder.join("libcuda.so"));
    folders.push((variant, folder.clone()));
    folder
}

fn compile(source: &str, flags: &[&str], library: &Path) {
    // Another run may use the file that is there, so it is replaced at once.
    let made = library.with_extension(format!("made-{}", process::id()));
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread", "-Wl,-soname,libcuda.so.1", source, "-o"]);
    assert!(compiler.arg(&made).args(flags).status().expect("a C compiler").success());
    fs::rename(&made, library).unwrap();
}

/// Whether this machine has a driver of its own.
pub(crate) fn there_is_a_driver() -> bool {
    // SAFETY: loading the driver runs its initialisers, as in every program that is linked with it.
    unsafe { Library::new(LIBRARY) }.is_ok()
}

/// What is left over, as the double counts it.
#[repr(C)]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) contexts: c_int,
    pub(crate) entered: c_int,
    pub(crate) allocations: c_int,
    pub(crate) handles: c_int,
    pub(crate) unfinished: c_int,
    pub(crate) violations: c_int,
}

/// The double in this process.
pub(crate) struct Double;

impl Double {
    pub(crate) fn outstanding(&self) -> Outstanding {
        let mut outstanding = Outstanding::default();
        // SAFETY: of this type; it writes six numbers.
        unsafe { self.function::<extern "C" fn(*mut Outstanding)>("double_outstanding")(&mut outstanding) };
        outstanding
    }

    /// Whatever function of that name is called from now on fails; of no name, none does.
    pub(crate) fn fail(&self, name: &str) {
        let name = CString::new(name).unwrap();
        // SAFETY: of this type; it copies the text.
        unsafe { self.function::<extern "C" fn(*const c_char)>("double_fail")(name.as_ptr()) };
    }

    pub(crate) fn is_synchronous(&self, memory: &Memory) -> bool {
        let address = memory.descriptor().address();
        // SAFETY: of this type; it takes any address.
        unsafe { self.function::<extern "C" fn(u64) -> c_int>("double_is_synchronous")(address) != 0 }
    }

    /// Lets go of what a test has left on purpose.
    pub(crate) fn forget(&self) {
        // SAFETY: of this type; nobody uses what it unmaps.
        unsafe { self.function::<extern "C" fn()>("double_forget")() };
    }

    pub(crate) fn is_started(&self) -> bool {
        // SAFETY: of this type.
        unsafe { self.function::<extern "C" fn() -> c_int>("double_is_started")() != 0 }
    }

    /// An engine's memory on a device: `plain`, `managed`, `vmm` or `pool`.
    pub(crate) fn lend(&self, how: &str, device: i32, len: usize) -> Lent {
        self.lend_of(2, how, device, len)
    }

    /// An engine's host memory that CUDA knows.
    pub(crate) fn lend_host(&self, how: &str, len: usize) -> Lent {
        self.lend_of(1, how, 0, len)
    }

    fn lend_of(&self, memory_type: c_int, how: &str, device: c_int, len: usize) -> Lent {
        let how = CString::new(how).unwrap();
        type Lend = extern "C" fn(c_int, *const c_char, c_int, usize) -> *mut c_void;
        // SAFETY: of this type; it reads the text.
        let start = unsafe { self.function::<Lend>("double_lend")(memory_type, how.as_ptr(), device, len) };
        Lent { start: start as usize, len }
    }

    /// # Safety
    /// `F` is its type, safe to call with what is passed here.
    unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the double has no initialisers. It stays loaded: gpu-mem holds it, or this does.
        let library = unsafe { Library::new(LIBRARY) }.expect("the double");
        // SAFETY: promised by the caller.
        let function = *unsafe { library.get::<F>(name) }.expect("a function of the double");
        std::mem::forget(library);
        function
    }
}

/// An engine's memory. Goes back to it when it is dropped.
pub(crate) struct Lent {
    start: usize,
    len: usize,
}

impl Lent {
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// Gives all of it away.
    pub(crate) fn adopt(self, accept: &[Allocation]) -> Result<Memory, MemoryError> {
        let len = self.len;
        self.adopt_part(0, len, accept)
    }

    /// Gives the `len` bytes at `offset` away, whether they are all in it or not.
    pub(crate) fn adopt_part(self, offset: usize, len: usize, accept: &[Allocation]) -> Result<Memory, MemoryError> {
        let start = NonNull::new((self.start + offset) as *mut u8).unwrap();
        // SAFETY: there until it is dropped, and nobody refers to it. What is not in it is refused.
        unsafe { Memory::adopt(start, len, Box::new(self), accept) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: of this type; it takes back what it lent.
        unsafe { Double.function::<extern "C" fn(usize)>("double_take_back")(self.start) };
    }
}
