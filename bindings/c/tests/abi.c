/* Sizes of objects, of a codec with everything that an object can hold, and the number of every result. */
#include <gradwire.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  gw_codec *codec, *linear;
  gw_layout *layout;
  gw_encoder *encoder;
  uint8_t frame[GW_FRAME_BOUND(100)];
  float values[100] = {1};
  size_t size, bytes;
  if (gw_codec_new("topk:density=0.01,memory=none", &codec) || gw_codec_new("none", &linear) ||
      gw_layout_new_flat(100, &layout) || gw_encoder_new(codec, layout, &encoder)) {
    return 1;
  }
  if (gw_encode(encoder, 0, values, 100, NULL, frame, sizeof frame, &bytes)) return 1;
  printf("size of gw_codec: %zu\nsize of gw_layout: %zu\n", gw_codec_size(), gw_layout_size());
  printf("size of gw_limits: %zu\nsize of gw_outline: %zu\n", gw_limits_size(), gw_outline_size());
  if (gw_encoder_size(codec, layout, &size)) return 1;
  printf("size of gw_encoder, topk of 100: %zu\n", size);
  if (gw_frame_size(frame, bytes, layout, NULL, &size)) return 1;
  printf("size of gw_frame, topk of 100: %zu\n", size);
  if (gw_rounds_size(linear, layout, 4, &size)) return 1;
  printf("size of gw_rounds, none of 100: %zu\n", size);
  gw_codec_free(codec);
  if (gw_codec_new("topk:density=0.01", &codec) || gw_memory_size(codec, layout, &size)) return 1;
  printf("size of gw_memory, topk of 100: %zu\n", size);
  for (gw_result result = 0; result < 1000; result++) {
    if (strcmp(gw_result_name(result), "unknown") != 0) printf("%s: %u\n", gw_result_name(result), result);
  }
  gw_encoder_free(encoder), gw_layout_free(layout), gw_codec_free(codec), gw_codec_free(linear);
  return 0;
}
