//! NIXL for a build and for a run: nixl-sys wants g++ and libclang, what it loads comes with NIXL's wheel.

use std::{
    env::{self, consts::ARCH},
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;
use transport_nixl::{Machine, Nixl, NotFound, Origin, SETTING};

use crate::{
    Setup, Stop, clang,
    fetch::Wheel,
    set_up as set_up_tools,
    setup::{BUILD, Tool},
    steps::{Failed, Step, Variables, root, shown, target_dir},
};

/// What nixl-sys loads at run time.
const NIXL: Wheel = Wheel {
    name: "nixl-cu12",
    version: "1.5.1",
    hashes: &[
        "a02005f84e498641b8fe02d058fdc6762c99edf7ae6430176d2d16fa57f4fb93", // x86_64
        "98d4b169813a5110842aefc383ba3bf259a886cd09cc9d54c7a6db69bb36de4d", // aarch64
    ],
    megabytes: 69,
    // Nothing in it that is used here depends on Python, so the file for one Python will do for any.
    python: &["--implementation", "cp", "--python-version", "3.12", "--abi", "cp312", "--platform", PLATFORM],
    files: &[".nixl_cu12.mesonpy.libs/libnixl_capi.so", ".nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so"],
};

#[cfg(target_arch = "aarch64")]
const PLATFORM: &str = "manylinux_2_28_aarch64";
#[cfg(not(target_arch = "aarch64"))]
const PLATFORM: &str = "manylinux_2_28_x86_64";

/// What bindgen reads nixl-sys's header with.
const LIBCLANG: Wheel = Wheel {
    name: "libclang",
    version: "18.1.1",
    hashes: &[
        "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b", // x86_64
        "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592", // aarch64
    ],
    megabytes: 25,
    python: &[],
    files: &["clang/native/libclang.so"],
};

/// More of what clang is told, beside what nixl-sys tells it.
const CLANG_ARGS: &str = "BINDGEN_EXTRA_CLANG_ARGS";

/// Set-up of a chore that takes NIXL in where it can.
#[derive(Args)]
pub(crate) struct Optional {
    #[command(flatten)]
    pub(crate) setup: Setup,
    /// Leave NIXL out, and fetch nothing for it
    #[arg(long)]
    pub(crate) no_nixl: bool,
}

/// What a chore does with NIXL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Compiles against nixl-sys.
    Build,
    /// And loads NIXL.
    Run,
}

/// NIXL can be built with, and loaded where that was asked for.
pub(crate) struct Ready {
    /// What each cargo run with nixl-sys in its graph gets: the same for all, or bindgen is compiled again.
    pub(crate) build: Variables,
    /// What a process that loads NIXL gets.
    pub(crate) run: Variables,
}

/// Sets up what a build needs, and NIXL unless it is to be left out or this machine cannot have it, which is said.
pub(crate) fn set_up(optional: &Optional, use_: Use) -> Result<Option<Ready>, Stop> {
    let why = if optional.no_nixl { Some("as --no-nixl says".into()) } else { unsupported() };
    match why {
        None => required(&optional.setup, &[], use_).map(Some).map_err(|stop| {
            let or_without = |text: String| format!("{text}\nor leave NIXL out with --no-nixl");
            match stop {
                Stop::Tell(text) => Stop::Tell(or_without(text)),
                Stop::Failed(Failed(text)) => Stop::Failed(Failed(or_without(text))),
            }
        }),
        Some(why) => {
            eprintln!("xtask: going on without NIXL, {why}");
            set_up_tools(&optional.setup, &BUILD)?;
            Ok(None)
        }
    }
}

/// Sets up what a build with NIXL needs, and these tools besides.
pub(crate) fn required(setup: &Setup, tools: &[Tool], use_: Use) -> Result<Ready, Stop> {
    if let Some(why) = unsupported() {
        return Err(Stop::Tell(format!("no NIXL for this machine, {why}")));
    }
    let (folder, libclang) = (target_dir()?.join("nixl"), root().join(".tools/libclang"));
    let fetches_libclang = !clang::is_there();
    let mut wheels = vec![];
    if fetches_libclang {
        wheels.push((LIBCLANG, &libclang));
    }
    if use_ == Use::Run && !has_another(&folder)? {
        wheels.push((NIXL, &folder));
    }
    wheels.retain(|(wheel, folder)| !wheel.is_in(folder));
    for (wheel, folder) in &wheels {
        eprintln!("xtask: {wheel} is missing and will be fetched into {}", folder.display());
    }
    set_up_tools(setup, &needed(tools, !wheels.is_empty()))?;
    wheels.iter().try_for_each(|(wheel, folder)| wheel.fetch(folder))?;

    let build = if fetches_libclang { with_libclang(&libclang)? } else { vec![] };
    let run = match use_ {
        Use::Build => vec![],
        Use::Run => {
            let nixl = found(&folder)?;
            // Not every program lies where the fetched one is looked for: rustdoc's tests do not.
            let folder_of_it = nixl.library.parent().unwrap_or(&folder).as_os_str().to_owned();
            let named = (nixl.origin == Origin::Fetched).then_some((SETTING, folder_of_it));
            named.into_iter().chain(transport_nixl::environment(&machine(&folder), &nixl)).collect()
        }
    };
    Ok(Ready { build, run })
}

/// The folder of the wheel, whichever NIXL is installed here besides.
pub(crate) fn fetched(setup: &Setup) -> Result<PathBuf, Stop> {
    let folder = target_dir()?.join("nixl");
    if !NIXL.is_in(&folder) {
        set_up_tools(setup, &[Tool::Pip])?;
        NIXL.fetch(&folder)?;
    }
    Ok(folder)
}

/// `cargo xtask nixl`: sets up all of it, and says how to use it without xtask.
pub(crate) fn nixl(setup: &Setup) -> Result<(), Stop> {
    let ready = required(setup, &[], Use::Run)?;
    println!("NIXL: {}", found(&target_dir()?.join("nixl"))?.library.display());
    println!("to build with it: {}cargo build --release -p conformance --features cli,nixl", shown(&ready.build));
    println!("what that builds finds it and needs no more; for a program of your own, such as an example, all of it:");
    let example = "cargo run --release -p transport-nixl --features borrowed-agent --example bytes";
    println!("{}{}{example}", shown(&ready.build), shown(&ready.run));
    Ok(())
}

fn needed(more: &[Tool], fetches: bool) -> Vec<Tool> {
    let pip = if fetches { &[Tool::Pip][..] } else { &[] };
    [&BUILD[..], &[Tool::Cxx], pip, more].concat()
}

/// Why there is no NIXL for this machine, if there is none.
fn unsupported() -> Option<String> {
    let made = cfg!(all(target_os = "linux", target_env = "gnu")) && ["x86_64", "aarch64"].contains(&ARCH);
    (!made).then(|| format!("which is made for Linux with glibc on x86_64 and aarch64; this is {ARCH}-{}", env::consts::OS))
}

/// This machine, as an executable built here sees it.
fn machine(folder: &Path) -> Machine<'static> {
    Machine { executable: Some(folder.with_file_name("release").join("xtask")), ..Machine::this() }
}

/// The NIXL that an executable built here would load.
fn found(folder: &Path) -> Result<Nixl, Stop> {
    transport_nixl::find(&machine(folder)).map_err(|error| Stop::Tell(error.to_string()))
}

/// Whether it would load another one than the fetched one.
fn has_another(folder: &Path) -> Result<bool, Stop> {
    match transport_nixl::find(&machine(folder)) {
        Ok(nixl) => Ok(nixl.origin != Origin::Fetched),
        Err(NotFound::Nowhere) => Ok(false),
        Err(error) => Err(Stop::Tell(error.to_string())),
    }
}

/// How bindgen is told of the fetched libclang, which brings no headers: it takes the compiler's.
fn with_libclang(folder: &Path) -> Result<Variables, Failed> {
    let headers = Step::new("looking for the compiler's headers", "cc", ["-print-file-name=include"]).output()?;
    let mut args = env::var_os(CLANG_ARGS).filter(|args| !args.is_empty()).map_or_else(OsString::new, |mut args| {
        args.push(" ");
        args
    });
    args.push(format!("-I{}", headers.trim()));
    Ok(vec![(clang::SETTING, folder.join("clang/native").into()), (CLANG_ARGS, args)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn python_is_needed_only_to_fetch_with() {
        assert_eq!(needed(&[], false), [Tool::Cc, Tool::Make, Tool::Cxx]);
        assert_eq!(needed(&[Tool::Venv], true), [Tool::Cc, Tool::Make, Tool::Cxx, Tool::Pip, Tool::Venv]);
    }

    #[test]
    fn what_is_fetched_is_what_executables_built_here_find() {
        let root = tempfile::tempdir().unwrap();
        for file in NIXL.files {
            let file = root.path().join("target/nixl").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let machine = Machine { variable: &|_| None, root: root.path(), ..machine(Path::new("/target/nixl")) };
        let nixl = transport_nixl::find(&machine).unwrap();
        assert_eq!((nixl.origin, nixl.library), (Origin::Fetched, root.path().join("target/nixl").join(NIXL.files[0])));
        assert!(nixl.plugins.is_some_and(|plugins| plugins.is_dir()));
    }

    #[test]
    fn the_compilers_headers_come_after_what_the_user_says() {
        let Ok(variables) = with_libclang(Path::new("/tools")) else { panic!("cc is there") };
        assert_eq!(variables[0], ("LIBCLANG_PATH", "/tools/clang/native".into()));
        let (name, args) = &variables[1];
        assert_eq!(*name, "BINDGEN_EXTRA_CLANG_ARGS");
        let (_, headers) = args.to_str().unwrap().rsplit_once("-I").unwrap();
        assert!(Path::new(headers).join("stddef.h").is_file(), "{headers}");
    }
}
