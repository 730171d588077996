// C++17: objects that free themselves, two tensors with names, and a memory that survives a change of the model.
#include <gradwire.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(gw_result result) {
  if (result != GW_OK) throw std::runtime_error(gw_result_name(result));
}

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T *object) const {
    Free(object);
  }
};
using Codec = std::unique_ptr<gw_codec, Freed<gw_codec_free>>;
using Layout = std::unique_ptr<gw_layout, Freed<gw_layout_free>>;
using Encoder = std::unique_ptr<gw_encoder, Freed<gw_encoder_free>>;
using Memory = std::unique_ptr<gw_memory, Freed<gw_memory_free>>;

template <class Owner, class Make, class... Args>
Owner make(Make make, Args... args) {
  typename Owner::pointer object = nullptr;
  check(make(args..., &object));
  return Owner(object);
}

struct Tensor {
  std::string name;
  std::vector<std::size_t> shape;
};

Layout layout_of(const std::vector<Tensor> &tensors) {
  std::vector<const char *> names;
  std::vector<std::size_t> ranks, dims;
  for (const auto &tensor : tensors) {
    names.push_back(tensor.name.c_str());
    ranks.push_back(tensor.shape.size());
    dims.insert(dims.end(), tensor.shape.begin(), tensor.shape.end());
  }
  return make<Layout>(gw_layout_new, tensors.size(), names.data(), ranks.data(), dims.data(), dims.size());
}

}  // namespace

int main() {
  const auto codec = make<Codec>(gw_codec_new, "qsgd:bits=8,bucket=128,norm=l2,rounding=nearest,unit=tensor");
  const auto layout = layout_of({{"weight", {10, 64}}, {"bias", {10}}});
  const auto encoder = make<Encoder>(gw_encoder_new, codec.get(), layout.get());
  const auto memory = make<Memory>(gw_memory_new, codec.get(), layout.get());

  std::vector<float> gradient(650), sum(650);
  for (std::size_t i = 0; i < gradient.size(); i++) gradient[i] = static_cast<float>(i % 7) - 3.0f;
  std::size_t bound = 0, bytes = 0;
  check(gw_encoder_frame_bound(encoder.get(), &bound));
  std::vector<std::uint8_t> frame(bound);
  check(gw_encode(encoder.get(), 0, gradient.data(), gradient.size(), memory.get(), frame.data(), frame.size(), &bytes));
  check(gw_add(frame.data(), bytes, layout.get(), 1.0f, sum.data(), sum.size()));
  double kept = 0, moved = 0, lost = 0;
  check(gw_memory_norm(memory.get(), &kept));

  // The bias is gone, and a scale is new. What was kept for the weight stays.
  const auto later = layout_of({{"scale", {64}}, {"weight", {10, 64}}});
  const auto next = make<Memory>(gw_memory_new, codec.get(), later.get());
  std::size_t elements = 0, dropped = 0;
  check(gw_memory_remap(memory.get(), next.get(), &elements, &dropped, &lost));
  check(gw_memory_norm(next.get(), &moved));
  std::printf("%zu bytes of at most %zu; kept %.3f, moved %.3f in %zu elements, lost %.3f in %zu\n", bytes, bound, kept,
              moved, elements, lost, dropped);
  return elements == 640 && dropped == 10 && bytes < 700 && moved <= kept ? 0 : 1;
}
