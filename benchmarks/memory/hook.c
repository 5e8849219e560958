/* Counts what is allocated with posix_memalign, as torch's CPU allocator does: now, and at most since it was asked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define SLOTS (1u << 20) /* more than are ever allocated at once */

static struct { void *address; size_t size; } table[SLOTS];
static size_t level, peak;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int (*next_memalign)(void **, size_t, size_t);
static void (*next_free)(void *);

static uint32_t slot_of(const void *address) { return (uint32_t)(((uintptr_t)address >> 6) * 2654435761u) & (SLOTS - 1); }

int posix_memalign(void **out, size_t alignment, size_t size) {
  if (!next_memalign) next_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  int failed = next_memalign(out, alignment, size);
  if (failed) return failed;
  pthread_mutex_lock(&lock);
  uint32_t slot = slot_of(*out);
  while (table[slot].address) slot = (slot + 1) & (SLOTS - 1);
  table[slot].address = *out;
  table[slot].size = size;
  level += size;
  if (level > peak) peak = level;
  pthread_mutex_unlock(&lock);
  return 0;
}

void free(void *address) {
  if (!next_free) next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
  if (address && !((uintptr_t)address & 63)) {
    pthread_mutex_lock(&lock);
    uint32_t slot = slot_of(address);
    while (table[slot].address && table[slot].address != address) slot = (slot + 1) & (SLOTS - 1);
    if (table[slot].address) {
      level -= table[slot].size;
      table[slot].address = NULL;
      for (uint32_t later = (slot + 1) & (SLOTS - 1); table[later].address; later = (later + 1) & (SLOTS - 1)) {
        uint32_t home = slot_of(table[later].address);
        if (((later - home) & (SLOTS - 1)) >= ((later - slot) & (SLOTS - 1))) {
          table[slot] = table[later];
          table[later].address = NULL;
          slot = later;
        }
      }
    }
    pthread_mutex_unlock(&lock);
  }
  next_free(address);
}

size_t hook_level(void) { return level; }
size_t hook_peak(void) { return peak; }
void hook_reset(void) { pthread_mutex_lock(&lock); peak = level; pthread_mutex_unlock(&lock); }
