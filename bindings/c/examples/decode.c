/* Prints what a frame in a file holds: decode FILE. Nothing is known of who wrote it, in which language. */
#include <gradwire.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, gw_result result) {
  fprintf(stderr, "%s: %s\n", what, gw_result_text(result));
  return 1;
}

static void print_value(void *context, size_t index, float value) {
  (void)context;
  printf("%zu %.9g\n", index, value);
}

static uint8_t *read_file(const char *path, size_t *bytes) {
  uint8_t *content = NULL;
  long length;
  FILE *file = fopen(path, "rb");
  if (file && fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0) {
    rewind(file);
    content = malloc((size_t)length + 1);
    *bytes = content ? fread(content, 1, (size_t)length, file) : 0;
  }
  if (file) fclose(file);
  return content;
}

int main(int argc, char **argv) {
  size_t bytes, elements, units, i;
  uint64_t fingerprint, step;
  char text[160];
  gw_outline *outline = NULL;
  gw_layout *layout = NULL;
  gw_limits *limits = NULL;
  gw_frame *frame = NULL;
  uint8_t *content = argc == 2 ? read_file(argv[1], &bytes) : NULL;
  if (!content) return fprintf(stderr, "decode FILE\n"), 2;
  gw_result result = gw_outline_new(content, bytes, NULL, &outline);
  if (result != GW_OK) return free(content), fail(argv[1], result);
  gw_outline_step(outline, &step);
  gw_outline_units(outline, &units);
  gw_outline_extent(outline, &elements);
  gw_outline_fingerprint(outline, &fingerprint);
  gw_outline_codec(outline, text, sizeof text, NULL);
  printf("# %s, step %llu, %zu bytes, %zu elements\n", text, (unsigned long long)step, bytes, elements);
  for (i = 0; i < units; i++) {
    gw_outline_unit_text(outline, i, text, sizeof text, NULL);
    printf("# unit %zu, %s\n", i, text);
  }
  result = gw_layout_new_opaque(elements, fingerprint, &layout);
  if (result == GW_OK) result = gw_limits_new(layout, &limits);
  /* As many tensors as there are units, and 64 MiB for their tables. */
  if (result == GW_OK) result = gw_limits_set_max_body_bytes(limits, bytes);
  if (result == GW_OK) result = gw_limits_set_max_scratch_words(limits, 2 * elements + (1 << 24));
  if (result == GW_OK) result = gw_frame_new(content, bytes, layout, limits, &frame);
  if (result == GW_OK) result = gw_frame_each(frame, print_value, NULL);
  gw_frame_free(frame), gw_limits_free(limits), gw_layout_free(layout), gw_outline_free(outline), free(content);
  return result == GW_OK ? 0 : fail(argv[1], result);
}
