//! `cargo xtask check`: format, lints, docs and dependencies. Nothing is run.

use crate::{
    Stop,
    nixl::{self, Optional, Use},
    no_std,
    steps::{Failed, Step},
    versions::versions_of,
};

/// What clippy looks at, each as cargo would be told to build it.
const LINTS: [&str; 7] = [
    "--workspace --all-targets --features transport-ucx/borrowed-worker,transport-ucx/tokio",
    "-p transport-ucx --all-targets",
    "-p transport-nixl --all-targets",
    "-p transport-nixl --all-targets --features side-channel",
    "-p lease-proto",
    "-p gpu-mem --all-targets --features cuda",
    "-p conformance --all-targets --features cli",
];
const LINTS_WITH_NIXL: [&str; 3] = [
    "-p transport-nixl --all-targets --features nixl",
    "-p transport-nixl --all-targets --features nixl,borrowed-agent,side-channel",
    "-p conformance --all-targets --features cli,nixl",
];
const DOCS: &str = "conformance/cli,transport-ucx/borrowed-worker,transport-ucx/tokio,transport-nixl/side-channel";
const DOCS_WITH_NIXL: &str = "conformance/nixl,transport-nixl/borrowed-agent";

/// Every warning is an error.
pub(crate) fn check(optional: &Optional) -> Result<(), Stop> {
    let ready = nixl::set_up(optional, Use::Build)?;
    let with_nixl = ready.is_some();
    let variables = ready.map(|ready| ready.build).unwrap_or_default();
    let lints = || LINTS.into_iter().chain(LINTS_WITH_NIXL.into_iter().filter(|_| with_nixl));
    Step::cargo("format", "fmt --all --check").run()?;
    for line in lints() {
        let step = Step::cargo("lints", "clippy --release").args(line.split_whitespace()).args(["--", "-D", "warnings"]);
        step.with_all(&variables).run()?;
    }
    let docs = Step::cargo("docs", "doc --release --workspace --no-deps --features").args([DOCS]);
    let docs = docs.args(with_nixl.then_some(["--features", DOCS_WITH_NIXL]).into_iter().flatten());
    docs.with("RUSTDOCFLAGS", "-D warnings").with_all(&variables).run()?;
    if with_nixl {
        versions_of(&variables)?;
    }
    keeps_out()?;
    one_ucx(lints())?;
    no_std()
}

/// What must not be below what, not even with all features or in tests.
const KEPT_OUT: [(&str, &[&str]); 3] = [
    // Built under other flags for loom, fuzzing and no_std: each would compile UCX again, or want what NIXL is built with.
    ("-p lease-proto -p kvlease-fuzz --target all", &["ucx-rs", "nixl-sys"]),
    // NIXL brings a UCX of its own; two in one process bind to each other's functions.
    ("-p transport-nixl", &["ucx-rs"]),
    // It looks after what both are built with.
    ("-p xtask", &["ucx-rs", "nixl-sys"]),
];

fn keeps_out() -> Result<(), Stop> {
    for (packages, unwanted) in KEPT_OUT {
        let step = Step::cargo("looking at what is below", "tree --all-features --prefix none");
        let step = step.args(packages.split_whitespace());
        let tree = step.output()?;
        let below = |package: &str| tree.lines().any(|line| line.split(' ').next() == Some(package));
        if let Some(package) = unwanted.iter().find(|package| below(package)) {
            return Err(Failed(format!("{package} must not be below {packages}, but it is; to see it:\n{step}")).into());
        }
    }
    Ok(())
}

/// UCX is compiled again for every other set of features of what its build script is made from, and cargo joins features over
/// all that is built together: NIXL's build script must turn on none of them.
fn one_ucx(builds: impl Iterator<Item = &'static str>) -> Result<(), Stop> {
    let mut first: Option<(Vec<String>, Step)> = None;
    for line in builds {
        // What is built with tests has their dependencies in its graph.
        let (edges, line) = match line.split_once(" --all-targets") {
            Some((before, after)) => ("normal,build,dev", format!("{before}{after}")),
            None => ("normal,build", line.to_owned()),
        };
        let step =
            Step::cargo("looking at what UCX is built with", "tree --prefix depth --no-dedupe").args(["--format", " {p} {f}"]);
        let step = step.args(["--edges", edges]).args(line.split_whitespace());
        let below = below(&step.output()?, "ucx-rs");
        match &first {
            _ if below.is_empty() => {}
            None => first = Some((below, step)),
            Some((other, _)) if *other == below => {}
            Some((other, before)) => {
                let differs: Vec<_> = below.iter().filter(|line| !other.contains(line)).map(String::as_str).collect();
                let text = format!("UCX would be compiled twice, since {} differs between\n{before}\n{step}", differs.join(", "));
                return Err(Failed(text).into());
            }
        }
    }
    Ok(())
}

/// The lines of a tree with depths from the first of `package` to the last below it.
fn below(tree: &str, package: &str) -> Vec<String> {
    let lines =
        tree.lines().filter_map(|line| line.split_once(' ')).filter_map(|(depth, what)| Some((depth.parse::<u32>().ok()?, what)));
    let mut lines = lines.skip_while(|(_, what)| what.split(' ').next() != Some(package));
    let Some((top, root)) = lines.next() else { return vec![] };
    let below = lines.take_while(|(depth, _)| *depth > top).map(|(depth, what)| format!("{} {what}", depth - top));
    [root.to_owned()].into_iter().chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_package_is_told_apart_by_its_features_and_not_by_its_depth() {
        let tree = "0 suite v1 \n1 ucx-rs v0.1.0 mt\n2 tar v0.4 xattr\n3 libc v0.2 std\n1 other v1 \n2 libc v0.2 std\n";
        let expected = ["ucx-rs v0.1.0 mt", "1 tar v0.4 xattr", "2 libc v0.2 std"];
        assert_eq!(below(tree, "ucx-rs"), expected);
        let deeper = "0 suite v1 \n1 transport v1 \n2 ucx-rs v0.1.0 mt\n3 tar v0.4 xattr\n4 libc v0.2 std\n";
        assert_eq!(below(deeper, "ucx-rs"), expected);
        assert_ne!(below(&deeper.replace("libc v0.2 std", "libc v0.2 extra_traits,std"), "ucx-rs"), expected);
        assert!(below(tree, "ucx").is_empty());
    }
}
