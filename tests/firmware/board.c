/*
 * What bindings/c/examples/embedded.c needs of QEMU's mps2-an386: the vector table, what happens at reset, and text
 * through the debugger (semihosting). Prints how deep the stack ever was.
 */
#include <stddef.h>
#include <stdint.h>

extern uint32_t board_bss_start[], board_bss_end[], board_stack_top[];
int main(void);

static uint32_t debugger(uint32_t call, uintptr_t argument) {
  register uint32_t r0 __asm__("r0") = call;
  register uintptr_t r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static void end(int is_well) {
  debugger(0x18, is_well ? 0x20026 : 0x20023);
  for (;;) {
  }
}

/* Every call of the debugger stops the processor, so text is gathered first. */
static char line[64];
static size_t length;
static uintptr_t console;

static void flush(void) {
  const uintptr_t what[3] = {console, (uintptr_t)line, length};
  debugger(0x05, (uintptr_t)what);
  length = 0;
}

void board_write(const char *text, size_t count);
void board_write(const char *text, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (length == sizeof line) flush();
    line[length++] = text[i];
  }
}

static void write_decimal(uint32_t value) {
  char digits[10];
  size_t count = 0;
  do digits[count++] = (char)('0' + value % 10);
  while (value /= 10);
  while (count > 0) board_write(&digits[--count], 1);
}

/* Nothing that the program would write there. */
static const uint32_t paint = 0xa5c35a3cu;

static void reset(void) {
  uint32_t here, *free = board_bss_end;
  /* The floating-point unit is off at reset. */
  *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20;
  __asm__ volatile("dsb\n isb" ::: "memory");
  for (uint32_t *word = board_bss_start; word < board_bss_end; word++) *(volatile uint32_t *)word = 0;
  for (; free < &here - 32; free++) *(volatile uint32_t *)free = paint;
  const uintptr_t name[3] = {(uintptr_t) ":tt", 4, 3};
  console = debugger(0x01, (uintptr_t)name);
  int is_well = main() == 0;
  for (free = board_bss_end; *(volatile uint32_t *)free == paint;) free++;
  board_write("memory: stack ", 14);
  write_decimal((uint32_t)((uintptr_t)board_stack_top - (uintptr_t)free));
  board_write("\n", 1);
  flush();
  end(is_well);
}

static void fault(void) { end(0); }

const struct {
  uint32_t *stack;
  void (*handlers[15])(void);
} board_vectors __attribute__((section(".vectors"), used)) = {board_stack_top, {reset, fault, fault, fault, fault, fault}};
