/* The first frame: a gradient of four numbers, of which one is sent and three are kept. */
#include <gradwire.h>
#include <stdio.h>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    gw_result result = (call);                                                                     \
    if (result != GW_OK) {                                                                         \
      fprintf(stderr, "%s: %s\n", gw_result_name(result), gw_result_text(result));                 \
      return 1;                                                                                    \
    }                                                                                              \
  } while (0)

int main(void) {
  const float gradient[4] = {0.5f, -3.0f, 0.0f, 1.0f};
  float sum[4] = {0};
  uint8_t frame[GW_FRAME_BOUND(4)];
  size_t bytes;
  const float *kept;
  gw_codec *codec = NULL;
  gw_layout *layout = NULL;
  gw_encoder *encoder = NULL;
  gw_memory *memory = NULL;

  CHECK(gw_codec_new("topk:density=0.25", &codec));
  CHECK(gw_layout_new_flat(4, &layout));
  CHECK(gw_encoder_new(codec, layout, &encoder));
  CHECK(gw_memory_new(codec, layout, &memory));

  CHECK(gw_encode(encoder, 0, gradient, 4, memory, frame, sizeof frame, &bytes));
  CHECK(gw_memory_residual(memory, &kept, NULL));
  printf("%zu bytes; kept %g %g %g %g\n", bytes, kept[0], kept[1], kept[2], kept[3]);

  CHECK(gw_add(frame, bytes, layout, 1.0f, sum, 4));
  printf("decoded %g %g %g %g\n", sum[0], sum[1], sum[2], sum[3]);

  gw_memory_free(memory);
  gw_encoder_free(encoder);
  gw_layout_free(layout);
  gw_codec_free(codec);
  return 0;
}
