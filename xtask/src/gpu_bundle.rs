//! `cargo xtask gpu-bundle`: the suite with a UCX and a NIXL that know CUDA, in one folder to carry to a machine with a GPU.
//!
//! The UCX that is compiled in has no CUDA. So this builds against the package index's UCX, in a target folder of its own, and puts
//! beside the executables all libraries they load that a machine with an NVIDIA driver does not have.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Setup, Stop,
    fetch::Wheel,
    nixl::{self, Use},
    set_up,
    setup::Tool,
    steps::{Failed, Step, root, target_dir},
};

/// The UCX to link against, the version that is compiled in elsewhere.
const UCX: Wheel = Wheel {
    name: "libucx-cu12",
    version: "1.22.0",
    hashes: &[
        "5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a", // x86_64
        "269aa884c3f83ced2ffb5f7704fb3a2da56d9402431222ddbe2901c1ae4fb227", // aarch64
    ],
    megabytes: 43,
    python: &[],
    files: &["libucx/lib/libucp.so.0", "libucx/lib/ucx/libuct_cuda.so.0", "libucx/include/ucp/api/ucp.h"],
};

/// Its libraries that a transport loads: the core, and what UCX opens by itself.
const UCX_CORE: [&str; 4] = ["libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0"];
const UCX_MODULES: [&str; 3] = ["libuct_cuda.so.0", "libucm_cuda.so.0", "libuct_cma.so.0"];

/// What of NIXL a process opens by its name, from the folder of the wheel.
const NIXL_ROOTS: [&str; 2] = [".nixl_cu12.mesonpy.libs/libnixl_capi.so", ".nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so"];

/// Where executables of the bundle look for UCX. UCX's own libraries look there as well, which only the older kind of path does.
const RPATH: &str = "-Clink-arg=-Wl,--disable-new-dtags,-rpath,$ORIGIN/../ucx/lib";

/// Why there may be no CUDA memory where the bundle is made; any other cause would be the bundle's own.
const NO_DEVICE: [&str; 2] = ["libcuda.so.1 not found", "the driver sees no device"];

const EXECUTABLES: [&str; 3] = ["kvlease", "kvlease-peer-ucx", "kvlease-peer-nixl"];

pub(crate) fn gpu_bundle(setup: &Setup) -> Result<(), Stop> {
    let ready = nixl::required(setup, &[], Use::Build)?;
    let (ucx, target) = (target_dir()?.join("ucx-cu12"), target_dir()?.join("gpu"));
    if !UCX.is_in(&ucx) {
        set_up(setup, &[Tool::Pip])?;
        UCX.fetch(&ucx)?;
    }
    let nixl = nixl::fetched(setup)?;
    let step = Step::cargo("building the suite with CUDA", "build --release -p conformance --features cli,nixl --target-dir");
    let step = step.args([&target]).args(["--config", &format!("build.rustflags=[{RPATH:?}]")]);
    let step = step.args(["--config", "profile.release.debug=0", "--config", "profile.release.strip=true"]);
    step.with_all(&ready.build).with("UCX_DIR", ucx.join("libucx")).run()?;

    let bundle = target_dir()?.join("gpu-bundle");
    assemble(&bundle, &target.join("release"), &ucx.join("libucx/lib"), &nixl)
        .map_err(|error| Failed(format!("{}: cannot be filled: {error}", bundle.display())))?;
    let verdict = tried(&bundle, &target.join("trial"))?;
    println!("{}: {verdict}", bundle.display());
    println!("carry it to a machine with a GPU, and a C library no older than this one's ({}), and run run.sh in it", libc());
    Ok(())
}

/// Fills the folder anew.
fn assemble(bundle: &Path, built: &Path, ucx: &Path, nixl: &Path) -> io::Result<()> {
    if bundle.exists() {
        fs::remove_dir_all(bundle)?;
    }
    let copy = |from: &Path, to: PathBuf| -> io::Result<()> {
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(from, &to).map(drop).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", from.display())))
    };
    for name in EXECUTABLES {
        copy(&built.join(name), bundle.join("bin").join(name))?;
    }
    for name in UCX_CORE {
        copy(&ucx.join(name), bundle.join("ucx/lib").join(name))?;
    }
    for name in UCX_MODULES {
        copy(&ucx.join("ucx").join(name), bundle.join("ucx/lib/ucx").join(name))?;
    }
    for file in needed_of(nixl)? {
        let place = file.strip_prefix(nixl).map_err(io::Error::other)?;
        copy(&file, bundle.join("nixl").join(place))?;
    }
    copy(&root().join("xtask/gpu-bundle/run.sh"), bundle.join("run.sh"))?;
    let commit = Step::new("asking for the commit", "git", ["describe", "--always", "--dirty"]).printed();
    fs::write(bundle.join("commit"), commit.unwrap_or_else(|| "unknown\n".into()))
}

/// The libraries of NIXL's wheel that its UCX backend loads.
fn needed_of(nixl: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let [library, plugin] = NIXL_ROOTS.map(|file| nixl.join(file));
    let bundled = nixl.join("nixl_cu12.libs");
    let mut roots = vec![library, plugin];
    for module in fs::read_dir(bundled.join("ucx"))? {
        let path = module?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.contains(".so") && !name.contains("perftest") {
            roots.push(path);
        }
    }
    let listed = Command::new("ldd").args(&roots).env("LD_LIBRARY_PATH", &bundled).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut needed = roots.into_iter().collect::<BTreeSet<_>>();
    for path in listed.lines().filter_map(loaded) {
        let path = path.canonicalize()?;
        if path.starts_with(nixl) {
            needed.insert(path);
        }
    }
    Ok(needed)
}

/// The file that a line of ldd names: `libx.so => /lib/libx.so (0x…)`.
fn loaded(line: &str) -> Option<&Path> {
    let (_, found) = line.split_once("=> ")?;
    found.rsplit_once(" (").map(|(path, _)| Path::new(path)).filter(|path| path.is_absolute())
}

/// Starts what was put together, with nothing of this workspace around it: host memory is read, and CUDA's too or there is no device.
fn tried(bundle: &Path, out: &Path) -> Result<String, Failed> {
    fs::create_dir_all(out).map_err(|error| Failed(format!("{}: cannot be made: {error}", out.display())))?;
    let start = |program: &str, args: &[&str]| {
        let mut command = Command::new(bundle.join(program));
        command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("HOME", "/")]).env("OUT", out).current_dir(out);
        let output = command.env("KVLEASE_NIXL", bundle.join("nixl/.nixl_cu12.mesonpy.libs")).args(args).output();
        let output = output.map_err(|error| Failed(format!("{}/{program}: does not start: {error}", bundle.display())))?;
        let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned()).concat();
        let failed = Failed(format!("{}/{program} ended with {}: {said}", bundle.display(), output.status));
        Ok((output.status.code(), said, failed))
    };
    let (code, _, failed) = start("bin/kvlease", &["certify", "--transport", "ucx,nixl", "--only", "read/bytes"])?;
    if code != Some(0) {
        return Err(failed);
    }
    let (code, said, failed) = start("run.sh", &[])?;
    let cause = said.lines().find(|line| NO_DEVICE.iter().any(|why| line.contains(why)));
    match (code, cause) {
        (Some(0), _) => Ok("certified on this machine".to_owned()),
        (Some(2), Some(cause)) => Ok(format!("whole; here, {cause}")),
        _ => Err(failed),
    }
}

/// This machine's C library: the executables will do with no older one.
fn libc() -> String {
    let version = Step::new("asking for the C library", "ldd", ["--version"]).printed();
    version.as_deref().and_then(|text| text.lines().next()).unwrap_or("of unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_found_is_taken_from_a_list() {
        let found = loaded("\tlibucp.so.0 => /a b/libucp.so.0 (0x00007f)");
        assert_eq!(found, Some(Path::new("/a b/libucp.so.0")));
        for line in ["\tlinux-vdso.so.1 (0x00007f)", "\tlibcuda.so.1 => not found", "/x/liby.so:", "\t/lib64/ld.so.2 (0x1)"] {
            assert_eq!(loaded(line), None, "{line}");
        }
    }

    #[test]
    fn the_ucx_of_the_bundle_is_the_version_that_is_compiled_in_elsewhere() {
        let lock = include_str!("../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"ucx-rs\"\nversion = \"0.1.0+ucx.{}\"", UCX.version)), "{}", UCX.version);
    }
}
