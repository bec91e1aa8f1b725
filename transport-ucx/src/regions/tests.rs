use gpu_mem::{HostSlab, Kind};
use lease_proto::transport::{Error as _, ErrorKind};

use super::*;
use crate::{Mistaken, UcxConfig};

fn registrar(fence: bool) -> Registrar {
    let config = UcxConfig { tls: Some("tcp".to_owned()), ..UcxConfig::default() };
    let context = Arc::new(Context::new(&config.settings(|_| false), "tcp").unwrap());
    Registrar { context, regions: Regions::default(), one_sided: true, fence }
}

fn memory(length: usize) -> Memory {
    HostSlab::new(length).unwrap().into()
}

fn exported(registrar: &Registrar, region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let length = registrar.export(region, Incarnation(7), &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn what_is_exported_says_what_the_region_is() {
    let registrar = registrar(true);
    let (one, other) = (registrar.register(memory(5000)).unwrap(), registrar.register_fenced(memory(1)).unwrap());
    for (region, fenced) in [(&one, false), (&other, true)] {
        let bytes = exported(&registrar, region);
        let remote = RemoteRegion::decode(Frame::decode(&bytes).unwrap()).unwrap();
        assert_eq!((remote.incarnation, remote.fenced, remote.length), (Incarnation(7), fenced, region.len() as u64));
        assert_eq!((remote.id, remote.address), (region.id, region.memory().descriptor().address()));
        assert!(remote.remote_key.usable().is_some());
        let error = registrar.export(region, Incarnation(7), &mut vec![0; bytes.len() - 1]).unwrap_err();
        assert_eq!(error, UcxError::Room { got: bytes.len() - 1, needed: bytes.len() });
    }
    assert_ne!(one.id, other.id);
}

#[test]
fn bytes_that_describe_no_region_are_refused() {
    let registrar = registrar(false);
    let region = registrar.register(memory(100)).unwrap();
    let bytes = exported(&registrar, &region);
    let payload = Frame::decode(&bytes).unwrap().payload().to_vec();
    let decode = |payload: &[u8]| {
        let mut framed = vec![0; payload.len() + HEADER];
        Frame::encode(Incarnation(7), payload, &mut framed).unwrap();
        RemoteRegion::decode(Frame::decode(&framed).unwrap()).map(|region| region.remote_key.usable().is_some())
    };
    assert_eq!(decode(&payload), Ok(true));
    for cut in 0..FIXED {
        assert_eq!(decode(&payload[..cut]), Err(UcxError::Region("cut short")));
    }
    // Without a key, or with one that cannot be whole, only the owner can serve.
    assert_eq!((decode(&payload[..FIXED]), decode(&payload[..FIXED + 8])), (Ok(false), Ok(false)));
    for at in 0..5 {
        let mut other = payload.clone();
        other[at] ^= 0x22;
        assert!(matches!(decode(&other), Err(UcxError::Region(_))), "byte {at}");
    }
    let with = |from: usize, value: u64| {
        let mut other = payload.clone();
        other[from..from + 8].copy_from_slice(&value.to_le_bytes());
        decode(&other)
    };
    assert_eq!((with(21, 0), with(21, u64::MAX)), (Err(UcxError::Region("malformed")), Err(UcxError::Region("malformed"))));
    assert_eq!(with(13, u64::MAX), Err(UcxError::Region("malformed")));
}

#[test]
fn a_region_for_one_lease_ends_when_it_is_fenced_and_its_memory_is_free() {
    let registrar = registrar(true);
    let region = registrar.register_fenced(memory(4096)).unwrap();
    let served = registrar.regions.get(region.id).unwrap();
    assert_eq!(registrar.fence(&region).unwrap_err().kind(), ErrorKind::WouldBlock, "something reads from it");
    assert!(!registrar.regions.holds(region.id), "nothing new begins meanwhile");
    drop(served);
    assert_eq!((registrar.fence(&region), registrar.fence(&region)), (Ok(()), Ok(())));
    let memory = region.memory().clone();
    drop(region);
    assert!(memory.try_into_slab().is_ok());
}

#[test]
fn a_fenced_region_is_not_exported_not_even_by_another_thread_meanwhile() {
    let registrar = registrar(true);
    for _ in 0..1000 {
        let region = registrar.register_fenced(memory(4096)).unwrap();
        let export = || registrar.export(&region, Incarnation(7), &mut [0; 4096]);
        std::thread::scope(|scope| {
            scope.spawn(|| while export().is_ok() {});
            scope.spawn(|| registrar.fence(&region).unwrap());
        });
        assert_eq!(export(), Err(UcxError::Fenced));
    }
}

#[test]
fn only_what_is_registered_for_one_lease_can_be_fenced_and_only_where_that_holds() {
    let without = registrar(false);
    assert_eq!(without.register_fenced(memory(1)).unwrap_err().kind(), ErrorKind::Unsupported);
    let region = without.register(memory(1)).unwrap();
    assert_eq!(without.fence(&region).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(without.regions.holds(region.id));
    let id = region.id;
    drop(region);
    assert!(!without.regions.holds(id));
}

#[test]
fn memory_that_ucx_takes_for_another_kind_is_refused_with_the_cause() {
    let registrar = registrar(false);
    let error = Mapped::mistaken(registrar.context, memory(4096)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let UcxError::MemoryType { found: "host", expected: Kind::Cuda { device: 0 }, why } = error else { panic!("{error}") };
    // The UCX that is compiled in has no CUDA; another may, and then `tcp` leaves it out.
    assert!([Mistaken::NotThere, Mistaken::LeftOut].contains(&why), "{why}");
    assert_eq!(error.to_string(), format!("ucx registered cuda:0 memory as host: {why}"));
}

#[test]
fn a_region_is_of_the_transport_that_registered_it() {
    let (here, there) = (registrar(true), registrar(true));
    let region = there.register_fenced(memory(4096)).unwrap();
    assert_eq!(here.export(&region, Incarnation(7), &mut [0; 4096]), Err(UcxError::OtherTransport));
    assert_eq!(here.fence(&region), Err(UcxError::OtherTransport));
    assert_eq!(there.fence(&region), Ok(()));
}

#[test]
fn regions_end_on_any_thread() {
    let registrar = registrar(false);
    let memory = memory(1 << 20);
    let regions: Vec<Region> = (0..100).map(|_| registrar.register(memory.clone()).unwrap()).collect();
    std::thread::scope(|scope| {
        regions.into_iter().for_each(|region| drop(scope.spawn(move || drop(region))));
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| drop(registrar.register(memory.clone()).unwrap())));
        }
    });
    assert!(registrar.regions.lock().regions.is_empty());
    assert!(memory.try_into_slab().is_ok());
}
