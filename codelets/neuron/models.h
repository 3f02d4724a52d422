// All neuron models, one line each; code that runs a model finds it in this list by name.
#pragma once

#include "ad_lif.h"
#include "cuba_lif.h"
#include "li.h"
#include "lif.h"
#include "resonator.h"

namespace sparsesnn::SPARSESNN_ISA {

using Models = List<                            //
    Lif<Reset::subtract>,                       //
    Lif<Reset::subtract_decays>,                //
    Lif<Reset::zero>,                           //
    Lif<Reset::none>,                           //
    CubaLif<Reset::subtract>,                   //
    CubaLif<Reset::subtract_decays>,            //
    CubaLif<Reset::zero>,                       //
    CubaLif<Reset::none>,                       //
    AdLif<Order::symplectic, Reset::zero>,      //
    AdLif<Order::symplectic, Reset::subtract>,  //
    AdLif<Order::explicit_, Reset::zero>,       //
    AdLif<Order::explicit_, Reset::subtract>,   //
    AdLif<Order::sparch, Reset::subtract>,      //
    Resonator,                                  //
    Li>;

}  // namespace sparsesnn::SPARSESNN_ISA
