//! Whether bindgen would find a libclang on this machine that can be used: nixl-sys is never built without.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use crate::steps::Step;

/// Names libclang's folder, or that file, to bindgen, which then looks nowhere else.
pub(crate) const SETTING: &str = "LIBCLANG_PATH";

/// Whether there is one. What the user names by [`SETTING`] is taken as it is.
pub(crate) fn is_there() -> bool {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if variable(SETTING).is_some() {
        return true;
    }
    let config = variable("LLVM_CONFIG_PATH").and_then(|path| path.into_string().ok()).unwrap_or("llvm-config".into());
    let prefix = Step::new("asking LLVM", &config, ["--prefix"]).printed();
    let paths = [variable("LD_LIBRARY_PATH"), variable("LIBRARY_PATH")];
    folders(Path::new("/"), prefix.as_deref().map(str::trim), paths.into_iter().flatten()).iter().any(|folder| holds(folder))
}

/// Where bindgen looks, as its crate clang-sys does.
fn folders(root: &Path, prefix: Option<&str>, paths: impl Iterator<Item = OsString>) -> Vec<PathBuf> {
    let of_llvm = prefix.into_iter().flat_map(|prefix| ["bin", "lib", "lib64"].map(|name| Path::new(prefix).join(name)));
    let mut folders: Vec<PathBuf> = of_llvm.collect();
    paths.for_each(|path| folders.extend(env::split_paths(&path)));
    for llvm in named(&root.join("usr/local"), "llvm") {
        folders.extend(named(&llvm, "lib"));
    }
    for base in ["usr/local", "usr"] {
        for lib in named(&root.join(base), "lib") {
            let below = named(&lib, "");
            folders.extend(below.iter().flat_map(|folder| named(folder, "")));
            folders.extend(below);
            folders.push(lib);
        }
    }
    folders
}

/// The folders in `folder` whose names begin so.
fn named(folder: &Path, start: &str) -> Vec<PathBuf> {
    entries(folder, |name| name.as_encoded_bytes().starts_with(start.as_bytes())).filter(|path| path.is_dir()).collect()
}

/// Whether a folder holds a libclang that has its own headers, without which it knows no `stddef.h`.
fn holds(folder: &Path) -> bool {
    let is_libclang = |name: &OsStr| {
        let name = name.to_string_lossy();
        let rest = name.strip_prefix("libclang").filter(|_| !name.contains("-cpp."));
        rest.is_some_and(|rest| rest.starts_with(".so") || (rest.starts_with('-') && rest.contains(".so")))
    };
    let libraries = entries(folder, is_libclang).filter_map(|library| library.canonicalize().ok());
    libraries.filter_map(|library| Some(library.parent()?.to_owned())).any(|folder| {
        let headers = [folder.join("clang"), folder.join("../lib/clang")];
        headers.iter().flat_map(|clang| entries(clang, |_| true)).any(|version| version.join("include/stddef.h").is_file())
    })
}

fn entries(folder: &Path, wanted: impl Fn(&OsStr) -> bool) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter(move |entry| wanted(&entry.file_name())).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn found(files: &[&str], links: &[(&str, &str)], prefix: Option<&str>) -> bool {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        files.iter().for_each(|file| fs::write(at(file), "").unwrap());
        links.iter().for_each(|(link, to)| symlink(to, at(link)).unwrap());
        let prefix = prefix.map(|prefix| root.path().join(prefix));
        let paths = std::iter::empty();
        folders(root.path(), prefix.as_ref().and_then(|p| p.to_str()), paths).iter().any(|folder| holds(folder))
    }

    #[test]
    fn it_is_found_where_distributions_put_it() {
        let debian = ["usr/lib/llvm-14/lib/libclang-14.so.14.0.6", "usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h"];
        assert!(found(&debian, &[], None));
        let fedora = ["usr/lib64/libclang.so.18.1.8", "usr/lib/clang/18/include/stddef.h"];
        assert!(found(&fedora, &[], None));
        assert!(found(&["opt/llvm/lib/libclang.so", "opt/llvm/lib/clang/19/include/stddef.h"], &[], Some("opt/llvm")));
        let link = ("usr/lib/x86_64-linux-gnu/libclang-14.so.1", "../llvm-14/lib/libclang.so.1");
        assert!(found(&["usr/lib/llvm-14/lib/libclang.so.1", debian[1]], &[link], None));
    }

    #[test]
    fn one_without_headers_is_none_and_neither_is_the_library_for_cpp() {
        assert!(!found(&["usr/lib/llvm-14/lib/libclang.so.1"], &[], None));
        let headers = "usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h";
        for other in ["libclang-cpp.so.14", "libclang.a", "libclangBasic.so", "libclang-14.a"] {
            assert!(!found(&[&format!("usr/lib/llvm-14/lib/{other}"), headers], &[], None), "{other}");
        }
        assert!(!found(&[headers], &[], None));
    }
}
