// Python bindings of batches: one call, whose arrays are checked here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "host/src/data/batch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsesnn {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using AnyIn = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

void require(bool holds, const std::string& message) {
  if (!holds) throw InputError("ShapeError", "make_batch: " + message);
}

// Hands the memory of `array` to a NumPy array with another element type.
template <class T, class Stored>
nb::object to_numpy(Array<Stored>& array, std::size_t n) {
  Stored* data = array.release();
  nb::capsule owner(data, [](void* p) noexcept { release(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, 1, &n, owner));
}

// An AugmentSpec and the table that it points into.
struct PyAugment {
  AugmentSpec spec;
  std::optional<In<double>> quantiles;
};

bool is_count(const nb::dlpack::dtype& type) {
  return type == nb::dtype<std::uint8_t>() || type == nb::dtype<std::uint16_t>() || type == nb::dtype<std::int32_t>();
}

nb::tuple batch(const AnyIn& ids, const AnyIn& lengths, const In<std::int64_t>& sample_starts, int n_neurons,
                const In<std::int64_t>& chosen, const PyAugment* augment, const std::optional<AnyIn>& values) {
  EventCache cache{};
  cache.wide = ids.dtype() == nb::dtype<std::int32_t>();
  require(ids.ndim() == 1 && (cache.wide || ids.dtype() == nb::dtype<std::uint16_t>()),
          "ids must be a flat array of uint16 or int32");
  require(lengths.ndim() == 2 && is_count(lengths.dtype()),
          "n_spikes must be uint8, uint16 or int32 with the shape [samples, steps]");
  require(!values || (values->ndim() == 1 && values->size() == ids.size() && is_count(values->dtype())),
          "values must be uint8, uint16 or int32, one for each id");
  require(sample_starts.ndim() == 1 && sample_starts.size() == lengths.shape(0) + 1,
          "sample_starts must have one entry more than the number of samples");
  require(chosen.ndim() == 1, "chosen must be flat");
  require(n_neurons > 0 || !ids.size(), "n_neurons must be above 0");
  cache.ids = ids.data();
  cache.lengths = lengths.data();
  cache.length_bytes = lengths.dtype().bits / 8;
  cache.values = values ? values->data() : nullptr;
  cache.value_bytes = values ? values->dtype().bits / 8 : 0;
  cache.sample_starts = sample_starts.data();
  cache.n_ids = static_cast<std::int64_t>(ids.size());
  cache.n_samples = static_cast<std::int64_t>(lengths.shape(0));
  cache.n_steps = static_cast<int>(lengths.shape(1));
  cache.n_neurons = n_neurons;
  if (augment) {
    const AugmentSpec& a = augment->spec;
    require(!a.width || n_neurons % (a.width * a.height) == 0, "the sensor's pixels do not divide the neurons");
  }
  const std::vector<std::int64_t> samples(chosen.data(), chosen.data() + chosen.size());
  Batch made;
  {
    nb::gil_scoped_release release;
    made = make_batch(cache, samples, augment ? &augment->spec : nullptr);
  }
  const std::size_t n_lists = made.n_spikes.size(), n = static_cast<std::size_t>(made.offsets[n_lists]);
  nb::object out = cache.wide ? to_numpy<std::int32_t>(made.ids, n) : to_numpy<std::uint16_t>(made.ids, n);
  return nb::make_tuple(to_numpy<std::int64_t>(made.offsets, n_lists + 1), out,
                        to_numpy<std::int32_t>(made.n_spikes, n_lists),
                        values ? to_numpy<float>(made.values, n) : nb::none());
}

}  // namespace

void register_batch(nb::module_& m) {
  nb::class_<PyAugment>(m, "Augment", "The strengths of sparsesnn.datasets.Augment for one epoch of one data set.")
      .def(
          "__init__",
          [](PyAugment* self, std::uint64_t seed, std::uint64_t epoch, double time_jitter, std::int64_t time_shift,
             double time_stretch, double time_crop, std::int64_t channel_shift, double channel_jitter,
             double event_drop, double time_mask, std::int64_t channel_mask, double blend, double mix,
             std::int64_t spatial_shift, double flip, std::int64_t rotation, int width, int height,
             std::optional<In<double>> quantiles, std::optional<In<std::int32_t>> rotated,
             const In<std::int64_t>& partners, std::optional<In<std::int64_t>> by_class,
             std::optional<In<std::int64_t>> spans) {
            require(width >= 0 && height >= 0 && (width == 0) == (height == 0) && width <= 32768 && height <= 32768,
                    "the sensor has no such width and height");
            require(!(spatial_shift || rotation || flip > 0) || width, "an image needs a sensor");
            require(!(time_jitter > 0 || channel_jitter > 0) || (quantiles && quantiles->size() == 4096),
                    "jitter needs 4096 quantiles");
            const auto n_entries = static_cast<std::size_t>(2 * rotation + 1) * static_cast<std::size_t>(width) *
                                   static_cast<std::size_t>(height);
            require(rotation >= 0 && rotation <= 180 && (!rotation || (rotated && rotated->size() == n_entries)),
                    "a rotation needs a table for every angle");
            require(!(mix > 0) || partners.size(), "mixing needs partners");
            require(!(blend > 0) || (by_class && spans && spans->ndim() == 2 && spans->shape(1) == 2),
                    "blending needs the partners class by class and spans of them");
            const auto numbers = [](const std::optional<In<std::int64_t>>& array) {
              return array ? std::vector<std::int64_t>(array->data(), array->data() + array->size())
                           : std::vector<std::int64_t>();
            };
            std::vector<std::int64_t> mates = numbers(by_class), ends = numbers(spans);
            for (std::size_t k = 0; k + 1 < ends.size(); k += 2)
              require(ends[k] >= 0 && ends[k] <= ends[k + 1] && ends[k + 1] <= static_cast<std::int64_t>(mates.size()),
                      "spans leave by_class");
            std::vector<std::int32_t> places(rotation ? n_entries : 0);
            for (std::size_t k = 0; k < places.size(); ++k) {
              const std::int32_t to = rotated->data()[k];
              require(to >= -1 && to < width * height, "rotated leaves the sensor");
              places[k] = to < 0 ? -1 : (to / width) << 16 | to % width;
            }
            new (self) PyAugment;
            self->quantiles = std::move(quantiles);
            AugmentSpec& a = self->spec;
            a = {seed,
                 epoch,
                 time_jitter,
                 time_stretch,
                 time_crop,
                 channel_jitter,
                 event_drop,
                 mix,
                 flip,
                 time_mask,
                 blend,
                 time_shift,
                 channel_shift,
                 channel_mask,
                 spatial_shift,
                 rotation,
                 width,
                 height,
                 self->quantiles ? self->quantiles->data() : nullptr,
                 std::move(places),
                 numbers(partners),
                 std::move(mates),
                 std::move(ends)};
          },
          nb::kw_only(), "seed"_a, "epoch"_a, "time_jitter"_a, "time_shift"_a, "time_stretch"_a, "time_crop"_a,
          "channel_shift"_a, "channel_jitter"_a, "event_drop"_a, "time_mask"_a, "channel_mask"_a, "blend"_a, "mix"_a,
          "spatial_shift"_a, "flip"_a, "rotation"_a, "width"_a, "height"_a, "quantiles"_a.none(), "rotated"_a.none(),
          "partners"_a, "by_class"_a.none() = nb::none(), "spans"_a.none() = nb::none());

  m.def("make_batch", &batch, "ids"_a, "n_spikes"_a, "sample_starts"_a, "n_neurons"_a, "chosen"_a, "augment"_a.none(),
        "values"_a.none(),
        "Samples of an event set as time-major lists (offsets, ids, n_spikes, values or None), augmented on request.");
}

}  // namespace sparsesnn
