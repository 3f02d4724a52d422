// sparsesnn._core: the Python bindings of the C++ engine.
#include <nanobind/nanobind.h>

namespace sparsesnn {
void register_build(nanobind::module_& m);      // build_bindings.cpp: instruction sets, threads, build_info
void register_engine(nanobind::module_& m);     // engine_bindings.cpp: the definition of a layer and its calls
void register_chain(nanobind::module_& m);      // chain_bindings.cpp: passes of layers and transforms
void register_sharded(nanobind::module_& m);    // sharded_bindings.cpp: layers that span ranks
void register_exchange(nanobind::module_& m);   // exchange_bindings.cpp: the messages between ranks
void register_batch(nanobind::module_& m);      // batch_bindings.cpp: batches out of an event cache
void register_optimizer(nanobind::module_& m);  // optimizer_bindings.cpp: Adam
void register_loss(nanobind::module_& m);       // loss_bindings.cpp: cross-entropy
void register_dense(nanobind::module_& m);      // dense_bindings.cpp: the neuron dynamics of the dense baseline
}  // namespace sparsesnn

NB_MODULE(_core, m) {
  // A graph that is alive when Python ends (a loss in a notebook, say) still holds its layers; that is not a leak.
  nanobind::set_leak_warnings(false);
  m.doc() = "The compiled engine of sparsesnn; use it through the sparsesnn package.";
  sparsesnn::register_build(m);
  sparsesnn::register_engine(m);
  sparsesnn::register_chain(m);
  sparsesnn::register_sharded(m);
  sparsesnn::register_exchange(m);
  sparsesnn::register_batch(m);
  sparsesnn::register_optimizer(m);
  sparsesnn::register_loss(m);
  sparsesnn::register_dense(m);
}
