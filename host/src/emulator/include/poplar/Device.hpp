#pragma once
#include "Target.hpp"
